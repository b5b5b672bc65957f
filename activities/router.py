"""Layer 03: which model answers?"""

from __future__ import annotations

from temporalio import activity

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.output import expressible
from activities.route_rules import Rule
from store import tasks
from store.catalogue import Catalogue, Model
from store.pricing import models_of
from workflows.contracts import Candidate, DecideInput, Decision
from workflows.errors import NotFound

__all__ = ["Router", "choose"]

# A cautious guess before the tokenizer has spoken: English has about four characters a token,
# code and other scripts fewer. Assembly counts exactly, and trims.
CHARS_PER_TOKEN = 3
# What a model must be able to for its answer to be held to a JSON schema.
CONSTRAINS = "json_schema"
# What it must be able to for a choice among tools to be held to them; and who does without.
CHOOSES = "grammar"
TOOLS = "tools"


class Router:
    """Rules choose; assembly and the engine have the last word."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    @activity.defn(name="router.decide")
    @typed_failures
    async def decide(self, call: DecideInput) -> Decision:
        """Return the models that may answer, best first, each with its reason."""
        return choose(await self._deps.catalogue.read(), call, held=await self._can_be_held(call))

    async def _can_be_held(self, call: DecideInput) -> bool:
        """Tell whether a grammar can express what the answer must obey."""
        if call.output is None:
            return False
        schema = await tasks.load_output_schema(
            self._deps.db, call.tenant.organisation_id, call.task_id
        )
        return schema is not None and expressible(schema)


def choose(catalogue: Catalogue, call: DecideInput, *, held: bool = False) -> Decision:
    """Apply a route's rules: capability, prompt length, price ceiling.

    Raises:
        UnknownName: No such route or model.
        NotFound: None of its models can take the call, or is deployed.
    """
    if not held:
        return _choose(catalogue, call, {CHOOSES} if call.turn.purpose == "tool_call" else set())
    try:
        return _choose(catalogue, call, {CONSTRAINS})
    except NotFound:
        # Nobody can be held to the schema: the answer is free, and looked at afterwards.
        return _choose(catalogue, call, set())


def _choose(catalogue: Catalogue, call: DecideInput, needed: set[str]) -> Decision:
    tokens = call.prompt_chars // CHARS_PER_TOKEN
    candidates: list[Candidate] = []
    refused: list[str] = []
    too_long: list[Rule] = []
    names = models_of(catalogue, call.route, call.model)
    rules = (
        [Rule.model_validate(rule) for rule in catalogue.routes[call.route].candidates]
        if call.model is None
        else [Rule(model=call.model)]
    )
    for rule in rules:
        model = registered(catalogue, rule.model)
        why_not = _objection(catalogue, model, rule, needed)
        if why_not is None and tokens > (rule.when.max_prompt_tokens or tokens):
            too_long.append(rule)
        why_not = why_not or _misfit(rule, tokens)
        if why_not is not None:
            refused.append(f"{model.name}: {why_not}")
            continue
        candidates += _deployed(catalogue, rule, _reason(call, rule, tokens), needed)
    if not candidates:
        # Longer than every rule: assembly will trim it, so the roomiest take it, best first.
        too_long.sort(key=lambda rule: -(rule.when.max_prompt_tokens or 0))
        for rule in too_long:
            reason = f"~{tokens} tokens are more than any rule of the route takes: to be trimmed"
            candidates += _deployed(catalogue, rule, reason, needed)
    if not candidates:
        told = "; ".join(refused) or f"none of {', '.join(names)} is deployed"
        raise NotFound(f"no model of route {call.route!r} can answer: {told}")
    return Decision(route=call.route, candidates=tuple(candidates), refused=tuple(refused))


def _objection(catalogue: Catalogue, model: Model, rule: Rule, needed: set[str]) -> str | None:
    able = set(model.capabilities)
    if TOOLS in able:
        # Whoever calls functions chooses among tools without a grammar.
        able.add(CHOOSES)
    missing = (needed | set(rule.when.capabilities)) - able
    if missing:
        return f"lacks {', '.join(sorted(missing))}"
    price = catalogue.price_of(rule.model)
    if price is None:
        return "has no price"
    ceiling = rule.max_usd_per_million_output
    if ceiling is not None and price.output_usd_per_million > ceiling:
        return f"costs ${price.output_usd_per_million} a million output tokens, above ${ceiling}"
    return None


def _misfit(rule: Rule, tokens: int) -> str | None:
    if rule.when.max_prompt_tokens is not None and tokens > rule.when.max_prompt_tokens:
        return f"its rule takes up to {rule.when.max_prompt_tokens} tokens, this has ~{tokens}"
    if rule.when.min_prompt_tokens is not None and tokens < rule.when.min_prompt_tokens:
        return f"its rule takes from {rule.when.min_prompt_tokens} tokens on, this has ~{tokens}"
    return None


def _deployed(catalogue: Catalogue, rule: Rule, reason: str, needed: set[str]) -> list[Candidate]:
    model = registered(catalogue, rule.model)
    return [
        Candidate(
            # By the name it was asked for, where the model is a wildcard.
            model=rule.model,
            version=model.version,
            deployment=deployment.id,
            engine="openai" if deployment.is_upstream else "triton",
            triton_model=deployment.engine_model(rule.model),
            urls=tuple(deployment.urls),
            tokenizer_version=model.tokenizer_version,
            reason=reason,
            constrained=CONSTRAINS in needed,
            deployment_class=deployment.deployment_class,
        )
        for deployment in catalogue.deployments_of(rule.model)
    ]


def registered(catalogue: Catalogue, name: str) -> Model:
    """Return the model that a name means.

    Raises:
        NotFound: None does.
    """
    model = catalogue.find(name)
    if model is None:
        raise NotFound(f"model {name!r} is not registered")
    return model


def _reason(call: DecideInput, rule: Rule, tokens: int) -> str:
    if call.model is not None:
        return "asked for by name"
    conditions = [f"prompt ~{tokens} tokens"]
    if rule.when.capabilities:
        conditions.append(f"has {', '.join(rule.when.capabilities)}")
    if rule.max_usd_per_million_output is not None:
        conditions.append(f"at most ${rule.max_usd_per_million_output} a million output tokens")
    return f"rule of route {call.route}: {', '.join(conditions)}"
