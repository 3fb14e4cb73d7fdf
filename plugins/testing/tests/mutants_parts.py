"""Parts beside strategies that are wrong in one way."""

import contextlib
import os
import pickle
import threading
import time
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import click
import torch
from mutants_cluster import environment
from table import mutant
from torch import nn

from core import (
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointReader,
    NumberFormats,
    Precision,
)
from core.accelerators import CPUAccelerator
from core.checkpoint import DistributedCheckpointIO, TorchCheckpointIO
from core.cluster import TorchElasticEnvironment
from core.loggers import CSVLogger
from core.precision import UniformPrecision

_MAIN_PROCESS = os.getpid()


part = partial(mutant, passes="test_documents_itself")
accelerator, precision, checkpoint_io, command = (
    partial(part, kind=kind) for kind in ("accelerator", "precision", "checkpoint io", "command")
)


class EndsOnceOnly:
    """Raises when it is torn down again."""

    ended = False

    def teardown(self):
        assert not self.ended
        self.ended = True


@accelerator("test_detects")
class DetectsANumber(CPUAccelerator):
    """Answers `detect` with a number."""

    @classmethod
    def detect(cls):
        return 1


@accelerator("test_detecting_touches_no_device")
class DetectsByTouching(CPUAccelerator):
    """Initializes CUDA to count devices, or what `torch.cuda.init` leaves behind where there is
    none.
    """

    @classmethod
    def detect(cls):
        torch.cuda._initialized = os.getpid() != _MAIN_PROCESS
        return super().detect()


@accelerator("test_has_a_name")
class ShoutsItsName(CPUAccelerator):
    """Has a name in upper case."""

    name = "SHOUTING"


@accelerator("test_parses_devices")
class TakesAllDevices(CPUAccelerator):
    """Takes all devices, whatever is asked for."""

    def parse_devices(self, devices):
        return list(range(4))


@accelerator("test_refuses_devices_that_are_not_there")
class TakesAnyIndex(CPUAccelerator):
    """Takes indices that nothing has."""

    def parse_devices(self, devices):
        return list(devices) if isinstance(devices, list) else super().parse_devices(devices)


@accelerator("test_makes_torch_devices")
class MakesOneDevice(CPUAccelerator):
    """Makes one device, however many indices there are."""

    def parse_devices(self, devices):
        return [0, 1] if devices == -1 else super().parse_devices(devices)

    def torch_devices(self, indices):
        return [torch.device("cpu")]


@accelerator("test_names_strategies_that_exist")
class NamesAMissingStrategy(CPUAccelerator):
    """Names a strategy that no package offers."""

    def default_strategy(self, num_devices, num_nodes):
        return "nowhere_to_be_found"


@accelerator("test_computes")
class EndsOnce(EndsOnceOnly, CPUAccelerator):
    """Raises when it is torn down again."""


@accelerator("test_keeps_random_state")
class ForgetsRandomState(CPUAccelerator):
    """Gives its random state, and doesn't take it back."""

    def get_rng_state(self, device):
        return torch.get_rng_state()


@accelerator("test_reports_memory_by_units")
class LeavesOutUnits(CPUAccelerator):
    """Names no units."""

    def memory_stats(self, device):
        return {"allocated": 1.0}


@accelerator("test_trains")
class ChangesTheRounding(CPUAccelerator):
    """Makes float32 the format of everything that computes."""

    def setup_device(self, device):
        nn.Linear.forward = lambda self, x: nn.functional.linear(x.float(), self.weight.float()).to(
            x.dtype
        )


@precision("test_describes_its_formats")
class HasNoName(Precision):
    """Has no name."""

    name = ""


@precision("test_converts_modules_in_place")
class ReplacesParameters(UniformPrecision):
    """Makes new parameters, which no optimizer knows."""

    def __init__(self) -> None:
        super().__init__(torch.bfloat16)

    def convert_module(self, module):
        for part in module.modules():
            for name, parameter in list(part.named_parameters(recurse=False)):
                if parameter.is_floating_point():
                    setattr(part, name, nn.Parameter(parameter.detach().bfloat16()))
        return super().convert_module(module)


@precision("test_builds_in_its_format")
class LeavesADefault(UniformPrecision):
    """Leaves its default dtype behind."""

    def __init__(self) -> None:
        super().__init__(torch.float64)

    def init_context(self):
        torch.set_default_dtype(torch.float64)
        return super().init_context()


@precision("test_computes_in_its_format")
class ComputesInFull(Precision):
    """Declares bfloat16, and computes in float32."""

    formats = NumberFormats(compute=torch.bfloat16)


@precision("test_converts_inputs_that_float")
class RoundsInputs(Precision):
    """Makes integers of what floats."""

    def convert_input(self, data):
        return data.long()


@precision("test_gradients_have_their_true_size")
class ForgetsToUnscale(Precision):
    """Scales the loss, and leaves gradients as large."""

    def backward(self, loss, *args, **kwargs):
        (loss * 1024).backward(*args, **kwargs)


@precision("test_skips_steps_that_overflow")
class StepsThroughOverflow(Precision):
    """Declares a scaled loss, and takes any step."""

    formats = NumberFormats(scales_loss=True)


@precision("test_state_comes_back")
class KeepsAFunction(Precision):
    """Has a function in its state."""

    def state_dict(self):
        return {"scale": print}


@precision("test_trains")
class HalvesGradients(Precision):
    """Halves gradients."""

    def backward(self, loss, *args, **kwargs):
        (loss / 2).backward(*args, **kwargs)


class OneFile(TorchCheckpointIO):
    """A right one, whose mutants change how it reads or writes."""

    def load_checkpoint(self, path, *, collectives, state=None):
        return self.read(
            path,
            collectives.rank,
            lambda: super(OneFile, self).load_checkpoint(path, collectives=collectives),
        )

    def read(self, path, rank, load):
        return load()

    def save_checkpoint(self, state, path, *, collectives):
        def save(path=path):
            super(OneFile, self).save_checkpoint(state, path, collectives=collectives)

        self.write(path, collectives, save)

    def write(self, path, collectives, save):
        save()


@checkpoint_io("test_a_state_comes_back[1]")
class WidensTensors(OneFile):
    """Reads bfloat16 as float32."""

    def read(self, path, rank, load):
        return _map(
            load(), lambda tensor: tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        )


def _map(value, function):
    if isinstance(value, dict):
        return {key: _map(item, function) for key, item in value.items()}
    return function(value) if isinstance(value, torch.Tensor) else value


@checkpoint_io("test_a_state_comes_back[2]")
class ReadsOnRankZero(OneFile):
    """Gives the state to rank 0 only."""

    def read(self, path, rank, load):
        loaded = load()
        return loaded if rank == 0 else {}


@checkpoint_io("test_shards_come_back")
class ReadsNoChunks(DistributedCheckpointIO):
    """Reads tensors whole, and not into the chunks that a rank has asked for."""

    def load_checkpoint(self, path, *, collectives, state=None):
        return super().load_checkpoint(path, collectives=collectives)


@checkpoint_io("test_replaces_what_was_there")
class KeepsTheFirst(OneFile):
    """Doesn't write to where something is."""

    def write(self, path, collectives, save):
        elsewhere = f"{path}.unwanted" if self.exists(path) else path
        save(elsewhere)
        if elsewhere != path:
            self.remove_checkpoint(elsewhere, collectives=collectives)


@checkpoint_io("test_makes_folders")
class NeedsFolders(OneFile):
    """Expects that the folder is there."""

    def write(self, path, collectives, save):
        if "://" not in str(path) and not Path(path).parent.exists():
            raise CheckpointError("no folder")
        save()


@checkpoint_io("test_takes_urls")
class KnowsNoUrls(TorchCheckpointIO):
    """Takes a URL for a relative path."""

    def load_checkpoint(self, path, *, collectives, state=None):
        return super().load_checkpoint(Path(path), collectives=collectives, state=state)


@checkpoint_io("test_leaves_no_temporary_files")
class LeavesTemporaryFiles(OneFile):
    """Leaves a temporary file beside the checkpoint."""

    def write(self, path, collectives, save):
        save()
        if "://" not in str(path):
            Path(path).with_name("temporary").touch()


@checkpoint_io("test_a_failing_save_leaves_what_was_there[1]")
class DeletesBeforeItWrites(OneFile):
    """Makes room before it knows that it can write."""

    def write(self, path, collectives, save):
        self.remove_checkpoint(path, collectives=collectives)
        save()


@checkpoint_io("test_a_failing_save_leaves_what_was_there[2]")
class FailsAlone(OneFile):
    """Raises on rank 0 only."""

    def write(self, path, collectives, save):
        try:
            save()
        except CheckpointError:
            if collectives.rank == 0:
                raise


@checkpoint_io("test_survives_a_kill")
class WritesInPlace(OneFile):
    """Writes straight to the path, bit by bit."""

    def write(self, path, collectives, save):
        save(f"{path}.new")
        if collectives.rank == 0:
            for prefix, suffix in (("", ""), (".", ".digest")):
                target = _local(path)
                new = target.with_name(f"{prefix}{target.name}.new{suffix}")
                _write_slowly(target.with_name(f"{prefix}{target.name}{suffix}"), new.read_bytes())
                new.unlink()
        collectives.barrier()


def _local(path):
    return Path(unquote(str(path).removeprefix("file://")))


def _write_slowly(path, content, num_parts=64):
    size = len(content) // num_parts + 1
    with path.open("wb", buffering=0) as file:
        for start in range(0, len(content), size):
            file.write(content[start : start + size])
            time.sleep(0.005 if len(content) > 1_000_000 else 0)


@checkpoint_io("test_a_missing_checkpoint_is_said[1]")
class ReadsNothing(OneFile):
    """Takes a missing checkpoint for an empty one."""

    def read(self, path, rank, load):
        try:
            return load()
        except CheckpointNotFoundError:
            return {}


@checkpoint_io("test_damage_is_found[changed]")
class TrustsFiles(OneFile):
    """Reads a file without looking at its digest."""

    def read(self, path, rank, load):
        if not _local(path).exists():
            return load()
        try:
            return torch.load(_local(path), weights_only=True)
        except Exception as error:
            raise CheckpointCorruptedError(f"{path}: {error}") from error


@checkpoint_io("test_nothing_is_executed")
class RunsCode(OneFile):
    """Unpickles what it can't read otherwise."""

    def read(self, path, rank, load):
        try:
            return load()
        except CheckpointCorruptedError:
            with contextlib.suppress(pickle.UnpicklingError, EOFError):
                pickle.loads(_local(path).read_bytes())
            raise


@checkpoint_io("test_removes")
class RemovesInPart(TorchCheckpointIO):
    """Deletes the digest, and leaves the file."""

    def remove_checkpoint(self, path, *, collectives):
        Path(path).with_name(f".{Path(path).name}.digest").unlink(missing_ok=True)


@checkpoint_io("test_teardown_is_idempotent")
class EndsStorageOnce(EndsOnceOnly, TorchCheckpointIO):
    """Raises when it is torn down again."""


@environment("test_detecting_imports_no_torch")
class DetectsByTorch(TorchElasticEnvironment):
    """Lives in a module that imports torch."""


def read(self, logger, folder):
    import csv

    with next(Path(folder).rglob("metrics.csv")).open(newline="") as file:
        rows = list(csv.DictReader(file))
    cells = [(row["step"], name, text) for row in rows for name, text in row.items()]
    return [
        (int(step), name, float(text))
        for step, name, text in cells
        if text and name not in ("step", "epoch")
    ]


logger = partial(part, kind="logger", read=read)


@logger("test_making_it_writes_nothing")
class WritesAtOnce(CSVLogger):
    """Makes its folder when it is made."""

    def __init__(self, save_dir: str = ".") -> None:
        super().__init__(save_dir)
        if save_dir != ".":
            self.folder()


@logger("test_logs_metrics")
class DropsLateNames(CSVLogger):
    """Keeps the names of its first row."""

    names = None

    def log_metrics(self, metrics, step):
        self.names = self.names or set(metrics)
        super().log_metrics(
            {name: value for name, value in metrics.items() if name in self.names}, step
        )


@logger("test_saves_what_it_keeps")
class SavesNothing(CSVLogger):
    """Writes at the end only, whatever `save` is for."""

    def save(self):
        pass

    def finalize(self, status):
        super().save()


@logger("test_logs_what_is_not_a_number")
class RefusesNan(CSVLogger):
    """Raises at NaN."""

    def log_metrics(self, metrics, step):
        assert all(value == value for value in metrics.values())
        super().log_metrics(metrics, step)


@logger("test_logs_hyperparameters")
class NeedsFlatOptions(CSVLogger):
    """Takes numbers only."""

    def log_hyperparams(self, params):
        sum(params.values())


@logger("test_finalizes[interrupted]")
class KnowsTwoEnds(CSVLogger):
    """Knows success and failure."""

    def finalize(self, status):
        super().finalize({"success": "success", "failed": "failed"}[status])


@logger("test_goes_on_after_a_stage")
class BeginsAnew(CSVLogger):
    """Begins another run after each stage."""

    def finalize(self, status):
        super().finalize(status)
        self.__init__(self._save_dir)


@logger("test_crosses_processes")
class HoldsALoggerLock(CSVLogger):
    """Holds a lock, which doesn't pickle."""

    def __init__(self, save_dir: str = ".") -> None:
        super().__init__(save_dir)
        self.lock = threading.Lock()


@logger("test_keeps_a_folder_for_others")
class NamesAFile(CSVLogger):
    """Names its file where it should name its folder."""

    @property
    def log_dir(self):
        return str(Path(super().log_dir, "metrics.csv"))


@logger("test_rank_zero_logs_for_all")
class LogsTwice(CSVLogger):
    """Writes each row twice."""

    def log_metrics(self, metrics, step):
        super().log_metrics(metrics, step)
        super().log_metrics(metrics, step)


@command("test_help_describes_it")
class HidesItsHelp(click.Command):
    """Doesn't know `--help`."""

    def __init__(self):
        super().__init__("hides_its_help", add_help_option=False)


@command("test_an_unknown_option_is_refused")
class IgnoresOptions(click.Command):
    """Goes on with options that it doesn't know."""

    def __init__(self):
        rest = click.Argument(["rest"], nargs=-1, type=click.UNPROCESSED)
        super().__init__(
            "odd", params=[rest], help="Do.", context_settings={"ignore_unknown_options": True}
        )


def reader(test):
    """A mutant of the reader of notes. Each has a mark of its own, since every reader is asked for
    every file.
    """

    def put(plugin):
        plugin.mark = f"{plugin.__name__}_version"

        def content(suite):
            return {plugin.mark: 3, "weights": {"layer.weight": torch.ones(2)}}

        return part(test, "checkpoint reader", content=content)(plugin)

    return put


class NotesReader(CheckpointReader):
    """Reads notes."""

    program = "Notes"

    def recognizes(self, head):
        return self.mark.encode() in head

    def translate(self, saved):
        return {
            "format": {"version": 1, "notes": saved[self.mark]},
            "model": dict(saved["weights"]),
        }


@reader("test_names_its_program")
class ReadsForNobody(NotesReader):
    """Doesn't name its program."""

    program = ""


@reader("test_recognizes_its_file")
class WantsTheWholeFile(NotesReader):
    """Looks for a mark at the end of a file, of which it gets the beginning."""

    def recognizes(self, head):
        return super().recognizes(head) and not head.endswith(bytes(8))


@reader("test_leaves_other_files_alone")
class TakesAnyWeights(NotesReader):
    """Recognizes every file with a state_dict in it."""

    def recognizes(self, head):
        return super().recognizes(head) or b"state_dict" in head


@reader("test_leaves_other_folders_alone")
class TakesAnyFolder(NotesReader):
    """Recognizes every folder with a file in it."""

    def recognizes_folder(self, path, names):
        return f"`notes read {path}`" if names else None


@reader("test_reads_a_file")
class KnowsAnotherMark(NotesReader):
    """Doesn't recognize its file."""

    def recognizes(self, head):
        return b"another_mark" in head


@reader("test_a_trainer_takes_it")
class LeavesOutTheFormat(NotesReader):
    """Leaves out the section by which the core knows a run's state."""

    def translate(self, saved):
        return {"model": super().translate(saved)["model"]}


@reader("test_leaves_the_content_as_it_is")
class EmptiesTheContent(NotesReader):
    """Takes the weights out of what it was given."""

    def translate(self, saved):
        state = super().translate(saved)
        saved["weights"].clear()
        return state


@reader("test_a_damaged_file_is_said")
class AssertsItsSections(NotesReader):
    """Takes for granted that weights are there."""

    def translate(self, saved):
        assert "weights" in saved
        return super().translate(saved)
