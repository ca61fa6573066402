#!/usr/bin/env bash
# What is measured on a GPU machine, one step after the other, each under its own limit; logs go to $OUT.
# Usage, from the repository's root, where nanolens can be imported: benchmarks/gpu/session.sh STEP...
# Steps: smoke, reference, eager, no_overlap, flash, pair, single, prefill, kernels, profile, prefill_profile, steps,
# engine_tests, kernel_tests, swap_tests, conversations, conversations_8b, conversations_fp32, memcheck, torch_profile, sampling_sweep, decode_sweep, few_rows_sweep, prefill_sweep.
# With two GPUs, or with two ranks that share one: parallel_tests, tp_tests (tp_ids, tp_real, tp_life, tp_kill, tp_stop).
# With two GPUs: topology, tp_smoke, reference_tp1,
# reference_tp2, reference_8b_tp1, reference_8b_tp2, reference_tp2_eager, tp_steps, tp_table.
# RUNS=3 repeats each of these references. STEP:SECONDS sets a step's limit.
set -u
: "${OUT:=/tmp}"
# NVLink multicast is of no use here, and on a host whose GPUs others use too it may harm them.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
bench() { python3 -P -m nanolens.benchmarks.cli "$@"; }

tp_tests() { python3 -P -m pytest -q -x --durations 4 -p no:cacheprovider tests/gpu/test_tensor_parallel_gpu.py -k "$1"; }
RUNS_FOLDER=/tmp/nanolens_ranks # stays between sessions on one machine, unlike $OUT

# on_ranks NAME MODEL RANKS: the reference workload on so many GPUs, RUNS times; then all runs so far in a table.
on_ranks() {
  local run json
  mkdir -p "$RUNS_FOLDER"
  for run in $(seq "${RUNS:-1}"); do
    rm -rf /tmp/journal_ranks
    json="$RUNS_FOLDER/ranks_$1_$run.json"
    rm -f "$json"
    bench offline --model "$2" --tensor-parallel-size "$3" --journal /tmp/journal_ranks --json "$json" || return
  done
  compare
}
compare() { cp "$RUNS_FOLDER"/ranks_*.json "$OUT"; python3 -P -m nanolens.benchmarks.scaling "$RUNS_FOLDER"/ranks_*.json; }

step() {
  case $1 in
    smoke) bench offline --num-requests 8 --input-len 20:90 --output-len 30 ;;
    reference) for _ in 1 2 3; do rm -rf /tmp/journal; bench offline --journal /tmp/journal --json "$OUT/reference.json" | grep -E "output tokens/s|floor|inter-token|first token"; done ;;
    eager) bench offline --enforce-eager --no-overlap ;;
    pair) bench offline --recording pair --pairs 5 ;;
    no_overlap) bench offline --no-overlap ;;
    single) bench offline --num-requests 1 --input-len 512 --output-len 512 ;;
    prefill) bench offline --num-requests 16 --input-len 1024 --output-len 1 --max-num-batched-tokens 16384 ;;
    flash) bench offline --attention flash --block-size 256 ;;
    torch_profile) python3 -P -m cProfile -s tottime -m nanolens.benchmarks.step_profile --prefill --batch 16 --context 512 | grep -A25 tottime ;;
    sampling_sweep) python3 -P -m nanolens.benchmarks.sampling_sweep ;;
    kernels) bench kernels ;;

    memcheck) # every 25th test of our kernels (flash-attn 2.8.3 itself writes past an allocation in its combine kernel), each allocation on its own so that no access hides in a neighbour's memory
      python3 -P -m pytest -q --collect-only -p no:cacheprovider tests/gpu --ignore-glob "*parallel_gpu.py" --ignore tests/gpu/test_engine_gpu.py --ignore tests/gpu/test_flash_attention_gpu.py --ignore tests/gpu/test_swap_gpu.py |
        grep :: | awk 'NR % 25 == 1' >/tmp/ids
      mapfile -t ids </tmp/ids
      PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 1 \
        python3 -P -m pytest -q -p no:cacheprovider "${ids[@]}" ;;
    profile) python3 -P -m nanolens.benchmarks.step_profile && python3 -P -m nanolens.benchmarks.step_profile --batch 1 --context 768 ;;
    prefill_profile) python3 -P -m nanolens.benchmarks.step_profile --prefill --batch 16 --context 512 ;;
    steps) rm -rf /tmp/j; bench offline --journal /tmp/j >/dev/null; python3 -P -m nanolens.benchmarks.step_times /tmp/j >/tmp/steps.txt; sed -n 5,30p /tmp/steps.txt; tail -n 1 /tmp/steps.txt ;;
    engine_tests) python3 -P -m pytest -q -n 6 -p no:cacheprovider tests/gpu/test_engine_gpu.py ;;
    kernel_tests) python3 -P -m pytest -q -n 10 --maxfail 30 -p no:cacheprovider tests/gpu --ignore-glob "*parallel_gpu.py" --ignore tests/gpu/test_engine_gpu.py --ignore tests/gpu/test_swap_gpu.py ;;
    swap_tests) python3 -P -m pytest -q -p no:cacheprovider tests/gpu/test_swap_gpu.py ;;
    conversations) bench conversations --model dummy:qwen3-0.6b --runs 3 --json "$OUT/conversations.json" && bench conversations --model dummy:qwen3-0.6b --runs 3 --first-len 2048 --next-len 256 --output-len 128 --json "$OUT/conversations_long.json" ;;
    conversations_8b) bench conversations --model dummy:qwen3-8b --runs 2 --first-len 2048 --next-len 256 --output-len 128 --json "$OUT/conversations_8b.json" ;;
    conversations_fp32) bench conversations --dtype float32 --model dummy:qwen3-0.6b --runs 1 --conversations 16 --resident 4 ;;
    decode_sweep) python3 -P -m nanolens.benchmarks.decode_attention_sweep ;;
    few_rows_sweep) python3 -P -m nanolens.benchmarks.few_rows_sweep ;;
    prefill_sweep) python3 -P -m nanolens.benchmarks.prefill_attention_sweep ;;
    topology) nvidia-smi topo -m; python3 -P -c 'import torch; n = torch.cuda.device_count(); print(n, "GPUs; peers:", [[a, b] for a in range(n) for b in range(n) if a != b and torch.cuda.can_device_access_peer(a, b)])' ;;
    parallel_tests) python3 -P -m pytest -q -rA -p no:cacheprovider tests/gpu/test_parallel_gpu.py ;;
    tp_smoke) bench offline --tensor-parallel-size 2 --num-requests 8 --input-len 20:90 --output-len 30 ;;
    tp_tests) tp_tests test ;; # all of them: tp_tests:500; in parts:
    tp_ids) tp_tests "those_of_one_gpu and not real" ;;
    tp_real) tp_tests real ;;
    tp_life) tp_tests "tokens_alone or each_step" ;;
    tp_kill) tp_tests "lost and kill" ;;
    tp_stop) tp_tests "lost and stop" ;;
    reference_tp1) on_ranks 0.6b_tp1 dummy:qwen3-0.6b 1 ;;
    reference_tp2) on_ranks 0.6b_tp2 dummy:qwen3-0.6b 2 ;;
    reference_8b_tp1) on_ranks 8b_tp1 dummy:qwen3-8b 1 ;;
    reference_8b_tp2) on_ranks 8b_tp2 dummy:qwen3-8b 2 ;;
    reference_tp2_eager) bench offline --model dummy:qwen3-0.6b --tensor-parallel-size 2 --enforce-eager --no-overlap ;;
    tp_steps) rm -rf /tmp/jtp; bench offline --model "${MODEL:-dummy:qwen3-8b}" --tensor-parallel-size 2 --journal /tmp/jtp | tail -n 5; python3 -P -m nanolens.benchmarks.step_times /tmp/jtp >"$OUT/tp_steps.txt"; sed -n 5,16p "$OUT/tp_steps.txt"; tail -n 3 "$OUT/tp_steps.txt" ;;
    tp_table) compare ;;
    *) echo "no step $1" >&2; return 2 ;;
  esac
}

export OUT RUNS_FOLDER
export -f step bench on_ranks compare tp_tests
for name in "$@"; do
  IFS=: read -r what limit <<<"$name:"
  began=$SECONDS
  timeout "${limit:-150}" bash -c "step $what" >"$OUT/$what.log" 2>&1
  echo "=== $what: exit $?, $((SECONDS - began)) s"
  tail -n "${LINES_SHOWN:-25}" "$OUT/$what.log"
done
