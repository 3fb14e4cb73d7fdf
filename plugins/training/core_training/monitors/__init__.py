"""Callbacks that log values beside the metrics of a module: learning rates, memory, samples a
second.

from core.callbacks import DeviceStatsMonitor, LearningRateMonitor, ThroughputMonitor
"""

from core_training.monitors.device_stats_monitor import DeviceStatsMonitor
from core_training.monitors.learning_rate_monitor import LearningRateMonitor
from core_training.monitors.throughput_monitor import ThroughputMonitor

__all__ = ["DeviceStatsMonitor", "LearningRateMonitor", "ThroughputMonitor"]
