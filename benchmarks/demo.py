"""`make demo`: a real model answers eight questions at once, in a pool too small for them; then its journal is read."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from ..errors import NanolensError
from .demo_screen import Answer, make_screen

SYSTEM = (
    "You are a helpful and friendly assistant who knows a lot about the world. "
    "Answer each question in one or two short sentences, with plain words, and without any lists."
)
QUESTIONS = (
    "What is the capital of France?",
    "Why do leaves turn yellow in autumn?",
    "Give me one tip for a better night's sleep.",
    "What does a baker do all day?",
    "How do bees make honey?",
    "Name an animal that lives in the desert, and say how it copes.",
    "What is a good name for a small grey cat?",
    "Why is the sea salty?",
)
MAX_TOKENS = 48
BLOCK_SIZE = 16
_BEGAN = time.monotonic()


def main(argv: Sequence[str] | None = None, out: TextIO | None = None) -> int:
    """Run the demo.

    Args:
        argv: arguments without the program's name; None takes the command line's.
        out: where it prints; None: stdout.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--model", default="smollm2", help="directory, hub name, smollm2 or dummy:NAME")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, help="tokens of an answer at most")
    parser.add_argument("--journal", type=Path, help="directory of the journal (default: in the user's cache)")
    arguments = parser.parse_args(argv)
    out = out or sys.stdout
    try:
        journal = prepare_journal(arguments.journal)
        answers = answer_questions(arguments.model, arguments.max_tokens, journal, out)
        tell_lives(journal, answers, out)
    except NanolensError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def answer_questions(model: str, max_tokens: int, journal: Path, out: TextIO) -> list[Answer]:
    """Load the model and answer all questions at once.

    The first question goes a little ahead, so that the others find its beginning, which is theirs too, in the cache.

    Raises:
        NanolensError: the model can't be loaded.
    """
    answers = [Answer(question) for question in QUESTIONS]
    screen = make_screen(answers, out)
    first = " (the first time it is fetched and converted, which takes a minute or so)" if model == "smollm2" else ""
    screen.say(f"nanolens demo: loading {model}{first}")
    from ..engine.build import build_engine
    from ..engine.config import EngineConfig
    from ..engine.runner.load import load_parts
    from ..engine.sampling_params import SamplingParams

    parts = load_parts(EngineConfig(model=model))
    prompts = [
        parts.tokenizer.apply_chat_template([{"role": "system", "content": SYSTEM}, {"role": "user", "content": each}])
        for each in QUESTIONS
    ]
    num_blocks = small_pool([len(prompt) for prompt in prompts], common_length(prompts), max_tokens)
    config = EngineConfig(model=model, block_size=BLOCK_SIZE, num_blocks=num_blocks, journal=str(journal))
    engine = build_engine(config, parts)
    pool = f"{num_blocks} KV blocks of {BLOCK_SIZE} tokens"
    screen.say(f"loaded {since_start():.1f} s after the start; {len(prompts)} questions, {pool}")
    screen.say("")
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    try:
        with screen:
            for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
                engine.add_request(prompt, params, on_output=answer.take, on_finish=answer.finish)
                if number == 0:
                    engine.step()
            while engine.step():
                screen.show(since_start())
    finally:
        engine.close()
    told = f"{screen.first_token_s:.1f} s after the start" if screen.first_token_s else "no token came"
    screen.say(f"first token: {told}; all answers: {since_start():.1f} s")
    return answers


def tell_lives(journal: Path, answers: list[Answer], out: TextIO) -> None:
    """Print what the journal says of each sequence, and how to look further.

    Raises:
        JournalError: nothing was written.
    """
    from .life_table import life_table, read_lives

    lives = read_lives(journal)
    preemptions = sum(life.num_preemptions for life in lives)
    print("\nEach sequence's life, read back from the journal (times in ms, blocks at their most):\n", file=out)
    print(life_table(lives), file=out)
    if preemptions:
        what = f"{preemptions} preemption(s): the pool ran out, so the youngest gave way and was computed again later"
    else:
        what = "no sequence was preempted this time: the answers ended before the pool ran out"
    print(f"\n{what}.", file=out)
    failed = sum(answer.failed for answer in answers)
    if failed:
        print(f"{failed} answer(s) ended in an error; the journal says why.", file=out)
    print(f"\nLook further:\n{look_further(journal)}", file=out)


def look_further(journal: Path) -> str:
    """The commands to go on with."""
    shown, commands = shell_path(journal), shell_path(Path(sys.executable).parent)
    lines = (
        (f"nano-trace tail {shown}", "what happened, in readable lines"),
        (f"nano-trace check {shown}", "does every block and every transition add up?"),
        ("nano-bench offline", "throughput and latency on this machine"),
    )
    width = max(len(command) for command, _ in lines)
    told = [f"  {commands}/{command:{width}}   {what}" for command, what in lines]
    return "\n".join([
        *told,
        f"  {commands}/python -P",
        "  >>> from nanolens import LLM, SamplingParams",
        '  >>> llm = LLM("smollm2", journal="run1")',
        '  >>> llm.generate(["The sea is"], SamplingParams(max_tokens=32))[0].outputs[0].text',
    ])  # fmt: skip


def small_pool(prompt_lengths: list[int], num_common: int, max_tokens: int) -> int:
    """Blocks that hold all prompts, the common beginning once, and a quarter of what the answers may need.

    All sequences are admitted, and one has to give way unless most answers end at once. One always fits alone.
    """
    shared = num_common // BLOCK_SIZE

    def blocks(tokens: int) -> int:
        return -(-tokens // BLOCK_SIZE)

    at_first = [blocks(length) - shared for length in prompt_lengths]
    growth = [blocks(length + max_tokens) - blocks(length) for length in prompt_lengths]
    alone = max(blocks(length + max_tokens) for length in prompt_lengths)
    return max(alone, shared + sum(at_first) + sum(growth) // 4)


def common_length(prompts: list[list[int]]) -> int:
    """Leading ids that all prompts have in common."""
    first, last = min(prompts), max(prompts)  # what these two share, all share
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def prepare_journal(directory: Path | None) -> Path:
    """The journal's directory, without the segments of an earlier demo in it.

    Without `directory` it lies in the user's cache, or in a temporary directory where that can't be written.
    """
    if directory is None:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        directory = base / "nanolens" / "journals" / "demo"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for segment in directory.glob("*.journal"):
                segment.unlink()
        except OSError:
            return Path(tempfile.mkdtemp(prefix="nanolens-demo-"))
    return directory


def shell_path(path: Path) -> str:
    """A path as one would type it here: relative below the working directory, else with ~."""
    for base, prefix in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(base) and path != base:
            return prefix + str(path.relative_to(base))
    return str(path)


def since_start() -> float:
    """Seconds since the process started, where the system tells, else since this module was loaded."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22: clock ticks since boot
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, AttributeError, ValueError, IndexError):
        return time.monotonic() - _BEGAN


if __name__ == "__main__":
    sys.exit(main())
