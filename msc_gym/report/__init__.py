"""Reports: `result.json` as a page that stands alone, and as a picture."""

from __future__ import annotations

from msc_gym.report.page import write_pareto, write_report
from msc_gym.report.result import Result, load_result, parse_result

__all__ = ["Result", "load_result", "parse_result", "write_pareto", "write_report"]
