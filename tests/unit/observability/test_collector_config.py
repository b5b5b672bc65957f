"""The collector's configuration refers to nothing that it does not define."""

from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[3] / "deploy" / "otel"


def merged(*names):
    """Merge as the collector does: maps by key, lists replaced."""

    def merge(into, more):
        for key, value in (more or {}).items():
            if isinstance(value, dict) and isinstance(into.get(key), dict):
                merge(into[key], value)
            else:
                into[key] = value
        return into

    result: dict = {}
    for name in names:
        merge(result, yaml.safe_load((FOLDER / name).read_text()))
    return result


def check(config):
    connectors = set(config["connectors"])
    sources = set(config["receivers"]) | connectors
    sinks = set(config["exporters"]) | connectors
    used_in, used_out, used_processors = set(), set(), set()
    for pipeline in config["service"]["pipelines"].values():
        used_in |= set(pipeline["receivers"])
        used_out |= set(pipeline["exporters"])
        used_processors |= set(pipeline["processors"])
        assert pipeline["processors"][0] == "memory_limiter"
        assert pipeline["processors"][-1] == "batch"
    assert used_in == sources
    assert used_out == sinks
    assert used_processors == set(config["processors"])
    assert set(config["service"]["extensions"]) == set(config["extensions"])


def test_alone():
    config = merged("collector.yaml")
    check(config)
    assert "upstream" not in str(config["exporters"])
    assert config["receivers"]["otlp"]["protocols"]["http"]["endpoint"].endswith(":4318")


def test_with_an_upstream():
    config = merged("collector.yaml", "upstream.yaml")
    check(config)
    assert "otlp/upstream" in config["service"]["pipelines"]["traces"]["exporters"]
    assert "spanmetrics" in config["service"]["pipelines"]["metrics"]["receivers"]
