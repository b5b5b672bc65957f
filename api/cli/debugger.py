"""Stops a replay in the workflow's own frame, under pdb."""

from __future__ import annotations

import dis
import pdb
import sys
from types import CodeType
from typing import Any

from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

__all__ = ["StopAtStart"]


class StopAtStart(Interceptor):
    """Makes every workflow stop at the first line of its `run`."""

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the name of the SDK's
    ) -> type[WorkflowInboundInterceptor]:
        """Return what stops."""
        return _Stop


class _Stop(WorkflowInboundInterceptor):
    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002
        code = input.run_fn.__code__
        debugger = _Debugger(nosigint=True)
        # Said once, before the first prompt: go on to the workflow's own frame.
        debugger.rcLines.extend([f"tbreak {code.co_filename}:{_first_line(code)}", "continue"])
        debugger.set_trace(sys._getframe())
        return await self.next.execute_workflow(input)


class _Debugger(pdb.Pdb):
    """pdb, but leaving it lets the replay go on: a task must not fail because somebody looked."""

    def do_quit(self, arg: str) -> bool | None:
        """Stop nowhere any more."""
        self.clear_all_breaks()
        self.message("the replay goes on without stopping")
        return self.do_continue(arg)

    do_q = do_exit = do_EOF = do_quit  # noqa: N815 - names of pdb's


def _first_line(code: CodeType) -> int:
    """Return the line of the first statement; the `def` has a line of its own."""
    lines = sorted({line for _, line in dis.findlinestarts(code) if line is not None})
    return next((line for line in lines if line > code.co_firstlineno), code.co_firstlineno)
