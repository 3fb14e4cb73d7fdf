"""The entry point that vLLM calls in each of its processes. Without vLLM, this module can be
imported.
"""

from core_vllm.vllm_sink import ENGINE


def register() -> None:
    """Make the engine known to vLLM."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    if ENGINE not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            ENGINE, "core_vllm.folder_engine", "FolderEngine"
        )
