"""Endpoints as people name them: URLs, headers, and OpenTelemetry's environment variables."""

from __future__ import annotations

import pytest

from nanolens.errors import InvalidConfig
from nanolens.telemetry.endpoint import (
    environment_endpoint,
    environment_headers,
    parse_endpoint,
    parse_header,
)


@pytest.mark.parametrize(
    ("url", "protocol", "shown"),
    [
        ("http://127.0.0.1:4318", None, "http://127.0.0.1:4318/v1/traces"),
        ("http://collector", None, "http://collector:80/v1/traces"),
        ("https://collector/", None, "https://collector:443/v1/traces"),
        ("https://collector/otlp/", None, "https://collector:443/otlp/v1/traces"),
        ("http://collector:4318/v1/traces", None, "http://collector:4318/v1/traces"),
        ("http://[::1]:4318", "http", "http://[::1]:4318/v1/traces"),
        ("grpc://collector", None, "grpc://collector:4317"),
        ("grpcs://collector:1", None, "grpcs://collector:1"),
        ("http://collector:4317", "grpc", "grpc://collector:4317"),
        ("https://[::1]:4317", "grpc", "grpcs://[::1]:4317"),
    ],
)
def test_a_url_names_a_receiver(url: str, protocol: str | None, shown: str) -> None:
    assert str(parse_endpoint(url, protocol)) == shown


@pytest.mark.parametrize(
    "url",
    ["", "collector", "collector:4318", "//x", "ftp://x", "http://", "http://:1", "http://x:0", "http://x:99999", "http://x:y",
     "http://x y", "http://x\n", "http://ü", "http://[x", "http://x?key=1", "http://x#y"],
)  # fmt: skip
def test_what_names_none_is_refused_in_words(url: str) -> None:
    with pytest.raises(InvalidConfig, match=r"otlp=.*: must be a URL like"):
        parse_endpoint(url)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidConfig, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        parse_endpoint("http://user:hunter2@collector:4318")
    assert "hunter2" not in str(caught.value)


def test_a_scheme_and_a_protocol_must_agree() -> None:
    with pytest.raises(InvalidConfig, match="must agree"):
        parse_endpoint("grpc://collector", "http")


def test_headers_of_the_environment_are_decoded_and_those_of_traces_win() -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_HEADERS": "X-One=a%20b, x-two=2,,",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-two=3==",
    }
    assert environment_headers(environ) == {"x-one": "a b", "x-two": "3=="}
    assert environment_headers({}) == {}


@pytest.mark.parametrize("text", ["", "x", "=1", "a b=1", "x=a\r\nHost: b", "x=ü"])
def test_a_header_that_can_not_be_sent_is_refused_without_its_value(text: str) -> None:
    with pytest.raises(InvalidConfig, match="header") as caught:
        parse_header(text)
    assert "Host" not in str(caught.value)


def test_the_endpoint_of_the_environment() -> None:
    assert environment_endpoint({}) == (None, None)
    both = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    assert environment_endpoint(both) == ("http://a:1", "http")
    more = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b:2", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}
    assert environment_endpoint(both | more) == ("http://b:2", "grpc")
    with pytest.raises(InvalidConfig, match="http/json"):
        environment_endpoint({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})
