"""Callbacks that log values beside the metrics of a module: learning rates, memory, samples a
second.

from core.callbacks import DeviceStatsMonitor, LearningRateMonitor, ThroughputMonitor
"""

from core_monitors._version import __version__
from core_monitors.device_stats_monitor import DeviceStatsMonitor
from core_monitors.learning_rate_monitor import LearningRateMonitor
from core_monitors.throughput_monitor import ThroughputMonitor

__all__ = ["DeviceStatsMonitor", "LearningRateMonitor", "ThroughputMonitor", "__version__"]
