"""The rewrite as a pass in Inductor's `pre_grad_custom_pass` slot.

A module of its own, because torch._inductor takes about as long to import as torch itself.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from fmlp_op.graph.rewrite import rewrite


class FusePass(CustomGraphPass):
    """Runs the user's own pass, where there is one, and then the rewrite.

    Equal passes make equal backends, so torch.compile does not compile the same callable again.
    """

    def __init__(self, policy: str, user_pass: Any = None) -> None:
        self.policy = policy
        self.user_pass = user_pass

    def __call__(self, graph: fx.Graph) -> None:
        from fmlp_op.backend import record

        user_passes = self.user_pass if isinstance(self.user_pass, list) else [self.user_pass]
        for user_pass in user_passes:
            if user_pass is not None:
                user_pass(graph)
        if graph.owning_module is not None:
            record(rewrite(graph.owning_module, policy=self.policy))

    def uuid(self) -> Any:
        """Part of Inductor's cache key; None (no caching on the user's behalf) where the user's pass has none."""
        own = ("fmlp_op", version("fmlp_op"), self.policy)
        if self.user_pass is None:
            return own
        user = getattr(self.user_pass, "uuid", lambda: None)()
        return None if user is None else (*own, user)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FusePass) and (self.policy, self.user_pass) == (other.policy, other.user_pass)

    def __hash__(self) -> int:
        return hash((self.policy, id(self.user_pass)))
