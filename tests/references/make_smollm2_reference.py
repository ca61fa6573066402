"""Makes smollm2_greedy.json: greedy continuations of our own prompts by transformers, on the embedded model in float32.

Run it with the environment's Python, without arguments; it writes beside itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers

from nanolens.models.embedded import embedded_directory

LENGTH = 24
PROMPTS = [
    "What is the capital of France?",
    "Write one sentence about the sea in winter.",
    "Explain in simple words why the sky is blue.",
    "List three uses of a paper clip.",
    "Translate 'good morning' into Spanish.",
    "A train leaves at nine and arrives at noon. How long does it travel? Show your steps.",
    "Give me a short recipe for tomato soup with basil, and say how long each step takes.",
    "My bicycle makes a grinding noise when I pedal uphill but not on flat roads. What could be wrong with it, and in "
    "which order should I check the parts?",
]


@torch.inference_mode()
def continuation(model: transformers.PreTrainedModel, prompt_ids: list[int], eos: int) -> tuple[list[int], float]:
    """Greedy tokens after a prompt up to the end of the answer, and the least distance between the two best logits."""
    ids, margin = list(prompt_ids), float("inf")
    while len(ids) < len(prompt_ids) + LENGTH and not (len(ids) > len(prompt_ids) and ids[-1] == eos):
        best = model(torch.tensor([ids])).logits[0, -1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt_ids) :], margin


def main() -> None:
    """Write the file."""
    directory = embedded_directory()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    rows = []
    for prompt in PROMPTS:
        messages = [{"role": "user", "content": prompt}]
        prompt_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        output_ids, margin = continuation(model, prompt_ids, tokenizer.eos_token_id)
        rows.append(
            {
                "prompt": prompt,
                "prompt_ids": prompt_ids,
                "output_ids": output_ids,
                "min_top1_top2_margin": round(margin, 5),
                "text": tokenizer.decode(output_ids),
            }
        )
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}, float32, greedy, chat template"
    lines = ",\n".join(json.dumps(row) for row in rows)
    path = Path(__file__).with_name("smollm2_greedy.json")
    path.write_text(f'{{"made_with": {json.dumps(made_with)},\n"rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
