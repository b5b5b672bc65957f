"""`RegisterTools`: a source of tools is read by a worker, the only part that reaches outside."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from workflows import policies
    from workflows.contracts import Registered, RegisterInput

__all__ = ["RegisterTools"]


@workflow.defn(name="RegisterTools")
class RegisterTools:
    """Makes the tools of one registration callable."""

    @workflow.run
    async def run(self, request: RegisterInput) -> Registered:
        """Register them, all or none."""
        registered: Registered = await workflow.execute_activity(
            "tools.register",
            request,
            result_type=Registered,
            summary="read the source of the tools",
            **policies.REGISTER,
        )
        return registered
