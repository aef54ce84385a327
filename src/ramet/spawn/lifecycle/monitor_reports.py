"""The reports of runs about the commands that they monitor: recorded, and brought to them as notices.

A report may come from a sandbox: its monitors are numbered here, and its batches are bounded.
"""

from __future__ import annotations

from ramet.core.errors import InvalidValue, MailRefused, Unknown
from ramet.core.events import MonitorEnded, MonitorStarted
from ramet.spawn.lifecycle.mail import MailRouter
from ramet.spawn.masking import masked_text
from ramet.spawn.run import Run
from ramet.tools.agents.report_framing import monitor_notice
from ramet.tools.run_info import MonitorReport

MAX_MONITORS = 8  #: active ones of one run
MAX_TEXT = 64 * 1024  #: characters of a report
MAX_COMMAND = 2_000  #: recorded characters of a command
LOST = "[{monitor} has ended: its process ended with the kernel or the sandbox that it was in]"


class MonitorReports:
    """The receiver of the reports of one tree."""

    def __init__(self, post: MailRouter) -> None:
        self._post = post

    def take(self, run: Run, report: MonitorReport, request_key: str = "") -> str:
        """Accept a report; return the id of its monitor. Raises InvalidValue, Unknown or MailRefused.

        An end without a text brings no message: the run ends it together with its turn. `request_key` is that of
        `CurrentCall`: a report that a sandbox sends again, to the next kernel, has no second effect.
        """
        if len(report.text) > MAX_TEXT:
            raise InvalidValue("text", f"{len(report.text)} characters", f"at most {MAX_TEXT}")
        if report.do == "start":
            known = run.monitors_by_request.get(request_key) if request_key else None
            return known or self._start(run, report.text, request_key)
        if report.monitor not in run.monitors:
            raise Unknown("monitor", report.monitor, tuple(run.monitors))
        if report.do == "lines":
            if any(each.sender == report.monitor for each in run.context.mailbox.unread):
                raise MailRefused(run.path, f"a batch of {report.monitor} is unread")
            run.monitors[report.monitor] += 1
            self._notify(run, report.monitor, report.text, request_key or str(run.monitors[report.monitor]))
        else:
            self._end(run, report.monitor, report.text)
        return report.monitor

    def end_lost(self, run: Run) -> None:
        """End the monitors of a run whose process has ended."""
        for monitor in list(run.monitors):
            self._end(run, monitor, LOST.format(monitor=monitor))

    def _start(self, run: Run, command: str, request_key: str) -> str:
        if len(run.monitors) >= MAX_MONITORS:
            raise InvalidValue("monitor", f"{len(run.monitors)} active ones", f"at most {MAX_MONITORS}: stop one")
        run.monitor_count += 1
        monitor = f"monitor-{run.monitor_count}"
        run.monitors[monitor] = 0
        shown = masked_text(run, command, MAX_COMMAND)
        run.context.emit(MonitorStarted, monitor=monitor, command=shown, asked=request_key)
        return monitor

    def _end(self, run: Run, monitor: str, text: str) -> None:
        del run.monitors[monitor]
        if text:  # First: after a kill in between, the next kernel ends the monitor, and this message is known.
            self._notify(run, monitor, text, "end")
        run.context.emit(MonitorEnded, monitor=monitor)

    def _notify(self, run: Run, monitor: str, text: str, number: str) -> None:
        notice = monitor_notice(masked_text(run, text, MAX_TEXT), monitor=monitor, is_running=number != "end")
        self._post.notify(run, notice, mail_id=f"{monitor}:{number}", sender=monitor)
