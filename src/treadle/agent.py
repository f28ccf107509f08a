"""What people use to extend agent workflows: skills with tools, and providers of models.

from treadle.agent import Skill, ToolContext
"""

from __future__ import annotations

from .performers.agent.api import (
    AskReply,
    AskRequest,
    ChooseReply,
    ChooseRequest,
    Provider,
    ProviderError,
    ToolSpec,
    TurnReply,
    TurnRequest,
)
from .performers.agent.skill import Skill, ToolContext

__all__ = [
    "AskReply",
    "AskRequest",
    "ChooseReply",
    "ChooseRequest",
    "Provider",
    "ProviderError",
    "Skill",
    "ToolContext",
    "ToolSpec",
    "TurnReply",
    "TurnRequest",
]
