"""Peak memory of a rank while a model of transformers is loaded, beside Accelerate's and
transformers' own ways.

python benchmarks/transformers_memory.py [--layers 16] [--ranks 2 4]    # needs transformers and
accelerate

Ranks on the CPU, gloo. A rank's memory is sampled each 2 ms, from when all is imported until each
rank has its part of the model: its own (RssAnon), and with mapped pages of the files (VmRSS), which
are shared, and in which transformers leaves what it needn't change. The bound is a rank's part and
the largest layer. Accelerate takes FSDP on CPUs for another distributed type: its own function
fsdp2_prepare_model is called with a state that says FSDP, and models as from_pretrained makes them
for it.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

MIB = 1024 * 1024
CORE = {
    "core, fsdp": lambda ranks: "fsdp",
    "core, parallel, shard": lambda ranks: {"data": 1, "shard": ranks},
    "core, parallel, tensor": lambda ranks: {"tensor": ranks},
    "core, parallel, pipeline": lambda ranks: {"pipeline": ranks},
}
OTHERS = ("transformers, fsdp", "transformers, tensor", "Accelerate, fsdp")
PROMPT_FREE = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "OMP_NUM_THREADS": "1",
}
OF_ACCELERATE = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
}


def memory_mib():
    """This process's own memory, and all that is in its address space, mapped pages of files
    too.
    """
    text = Path("/proc/self/status").read_text()
    return [int(re.search(rf"{name}:\s+(\d+)", text)[1]) / 1024 for name in ("RssAnon", "VmRSS")]


class Peak:
    """The largest memory of this process within a `with`, above what it was before."""

    def __enter__(self):
        self.before, self.most, self.is_over = memory_mib(), [0.0, 0.0], threading.Event()
        self.thread = threading.Thread(target=self._sample)
        self.thread.start()
        return self

    def _sample(self):
        while not self.is_over.wait(0.002):
            now = [each - before for each, before in zip(memory_mib(), self.before, strict=True)]
            self.most = [*map(max, now, self.most)]

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()


def make(folder, num_layers):
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=num_layers,
        num_attention_heads=16,
        vocab_size=4096,
        tie_word_embeddings=False,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder, max_shard_size="200MB")


def by_core(way, folder):
    from transformers import AutoModelForCausalLM

    from core import Fabric
    from core_parallel import MeshParallelStrategy
    from core_transformers import from_config, load_pretrained, save_pretrained

    ranks = int(os.environ["WORLD_SIZE"])
    layout = CORE[way](ranks)
    strategy = layout if isinstance(layout, str) else MeshParallelStrategy(**layout)
    fabric = Fabric(strategy=strategy, devices=ranks, accelerator="cpu")
    fabric.launch()
    with Peak() as loading:
        model = fabric.setup_module(from_config(fabric, folder, AutoModelForCausalLM))
        load_pretrained(fabric, model, folder)
    held = sum(each.nbytes for each in map(local, model.parameters()) if not each.is_meta)
    with Peak() as saving:
        save_pretrained(fabric, model, f"{folder}-saved")
    return held / MIB, loading.most, saving.most[0]


def by_transformers(way, folder):
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    dist.init_process_group("gloo")
    axis = "fsdp_size" if way.endswith("fsdp") else "tp_size"
    with Peak() as loading:
        config = DistributedConfig(**{axis: dist.get_world_size()})
        model = AutoModelForCausalLM.from_pretrained(folder, distributed_config=config)
    return sum(local(each).nbytes for each in model.parameters()) / MIB, loading.most, None


def by_accelerate(way, folder):
    import accelerate
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model
    from transformers import AutoModelForCausalLM

    plugin = accelerate.FullyShardedDataParallelPlugin(auto_wrap_policy="transformer_based_wrap")
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.state.fsdp_plugin = plugin
    with Peak() as loading:
        model = AutoModelForCausalLM.from_pretrained(folder)
        model = fsdp2_prepare_model(accelerator, model)
    return sum(local(each).nbytes for each in model.parameters()) / MIB, loading.most, None


def local(tensor):
    return getattr(tensor, "_local_tensor", tensor)


def work(way, folder, results):
    import torch.distributed.tensor  # noqa: F401  # what is imported isn't counted
    import transformers  # noqa: F401

    measure = (
        by_core
        if way in CORE
        else by_transformers
        if way.startswith("transformers")
        else by_accelerate
    )
    measured = measure(way, folder)
    Path(results, os.environ["RANK"]).write_text(json.dumps(measured))


def measured_by_ranks(way, ranks, folder):
    with tempfile.TemporaryDirectory() as results:
        command = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__]
        environment = {
            **os.environ,
            **PROMPT_FREE,
            **(OF_ACCELERATE if way.startswith("Accelerate") else {}),
        }
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", *command, "--work", way, str(folder), results],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if re.search(r"\w+Error: ", line)]
            return errors[0].strip() if errors else done.stderr[-300:]
        return [json.loads(path.read_text()) for path in sorted(Path(results).iterdir())]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--ways", nargs="+", choices=[*CORE, *OTHERS], default=[*CORE, *OTHERS])
    parser.add_argument("--work", nargs=3)
    asked = parser.parse_args()
    if asked.work:
        work(*asked.work)
        return
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first"
        make(first, asked.layers)
        total = sum(path.stat().st_size for path in first.glob("*.safetensors")) / MIB
        layer = 4 * (4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024) / MIB
        print(
            f"model {total:.0f} MiB, a layer {layer:.0f} MiB; MiB while loading, of the rank that "
            "takes most"
        )
        print(
            f"{'':26} {'ranks':>5} {'part':>6} {'bound':>6} {'own':>6} {'mapped':>6} {'saving':>7}"
        )
        for ranks in asked.ranks:
            for way in asked.ways:
                found = measured_by_ranks(way, ranks, first)
                if isinstance(found, str):
                    print(f"{way:26} {ranks:5} {found[:150]}")
                    continue
                part = max(each[0] for each in found)
                saving = "" if found[0][2] is None else f"{max(each[2] for each in found):.0f}"
                own, mapped = (max(each[1][index] for each in found) for index in (0, 1))
                print(
                    f"{way:26} {ranks:5} {part:6.0f} {part + layer:6.0f} {own:6.0f} {mapped:6.0f} "
                    f"{saving:>7}"
                )
                if (saved := Path(f"{first}-saved")).exists():
                    subprocess.run(["rm", "-r", str(saved)], check=True)


if __name__ == "__main__":
    main()
