"""Weights of a model that trains, sent to a vLLM server that generates with it.

from core_vllm import VLLMSink
"""

from core_vllm._version import __version__
from core_vllm.registration import register
from core_vllm.vllm_sink import VLLMSink

__all__ = ["VLLMSink", "__version__", "register"]
