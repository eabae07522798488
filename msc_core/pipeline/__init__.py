"""The whole job: prepare, parse, baseline, optimize, compile, export."""

from msc_core.pipeline.manager import Config, Manager, Planner, Report, Row

__all__ = ["Config", "Manager", "Planner", "Report", "Row"]
