"""Prompts, messages and stop strings as JSON has them, brought to one form or refused. Knows no route, no engine."""

from __future__ import annotations

from ..engine.sampling_params import MAX_STOP_STRINGS
from ..errors import InvalidRequest
from ..models.tokenizer import Message, check_text

Tokens = str | list[int]
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_EMPTY = "is empty: at least one token is needed"


def check_prompt(value: object) -> list[Tokens]:
    """The prompts of a completion: a text, a list of texts, a list of token ids, or a list of such lists.

    Raises:
        InvalidRequest: none of these, or an empty one.
    """
    if isinstance(value, str):
        return [check_tokens("prompt", value)]
    if not isinstance(value, list):
        raise InvalidRequest("prompt", f"prompt: must be a text or a list, not {_kind(value)}")
    if not value:
        raise InvalidRequest("prompt", f"prompt=[] {_EMPTY}")
    if isinstance(value[0], str | list):
        return [check_tokens(f"prompt[{index}]", each) for index, each in enumerate(value)]
    return [check_tokens("prompt", value)]


def check_tokens(name: str, value: object) -> Tokens:
    """A text or a list of token ids, not empty.

    Raises:
        InvalidRequest: its field is `name` without an index.
    """
    field = name.partition("[")[0]
    if isinstance(value, str):
        if not value:
            raise InvalidRequest(field, f"{name}='' {_EMPTY}")
        check_text(value, field)
        return value
    if not isinstance(value, list):
        raise InvalidRequest(field, f"{name}: must be a text or a list of token ids, not {_kind(value)}")
    if not value:
        raise InvalidRequest(field, f"{name}=[] {_EMPTY}")
    for index, token in enumerate(value):
        if type(token) is not int or not -(2**63) <= token < 2**63:
            raise InvalidRequest(field, f"{name}[{index}]: must be a token id, not {_kind(token)}")
    return value


def check_messages(value: object) -> list[Message]:
    """Messages with a role and a text each; lists of text parts are joined.

    Raises:
        InvalidRequest: naming the message at fault.
    """
    if not isinstance(value, list):
        raise InvalidRequest("messages", f"messages: must be a list of messages, not {_kind(value)}")
    if not value:
        raise InvalidRequest("messages", "messages=[]: must hold at least one message")
    return [_message(f"messages[{index}]", each) for index, each in enumerate(value)]


def _message(name: str, value: object) -> Message:
    if not isinstance(value, dict):
        raise InvalidRequest(name, f"{name}: must be an object with role and content, not {_kind(value)}")
    for key, allowed in (("tool_calls", "tools are"), ("function_call", "functions are"), ("audio", "audio is")):
        if value.get(key):
            raise InvalidRequest(f"{name}.{key}", f"{name}.{key}: {allowed} not supported by this server")
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequest(f"{name}.role", f"{name}.role: must be one of {', '.join(_ROLES)}")
    if not isinstance(value.get("name", ""), str | None):
        raise InvalidRequest(f"{name}.name", f"{name}.name: must be a text, not {_kind(value['name'])}")
    return {"role": _ROLES[role], "content": _content(f"{name}.content", value.get("content"))}


def _content(name: str, value: object) -> str:
    if isinstance(value, str):
        check_text(value, name)
        return value
    if not isinstance(value, list):
        raise InvalidRequest(name, f"{name}: must be a text or a list of text parts, not {_kind(value)}")
    texts = []
    for index, part in enumerate(value):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise InvalidRequest(name, f'{name}[{index}]: must be {{"type": "text", "text": ...}}; only text is taken')
        check_text(text, name)
        texts.append(text)
    return "".join(texts)


def check_stop(value: object) -> list[str]:
    """Stop strings: none, one, or a list.

    Raises:
        InvalidRequest: an empty one, one that is no text, or too many.
    """
    if value is None:
        return []
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise InvalidRequest("stop", f"stop: must be a text or a list of texts, not {_kind(value)}")
    if len(texts) > MAX_STOP_STRINGS:
        raise InvalidRequest("stop", f"stop: {len(texts)} strings; must be at most {MAX_STOP_STRINGS}")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequest("stop", f"stop[{index}]: must be a text, not {_kind(text)}")
        if not text:
            raise InvalidRequest("stop", f"stop[{index}]='': must not be empty; leave it out")
        check_text(text, "stop")
    return texts


_KINDS = {type(None): "null", bool: "true or false", dict: "an object", list: "a list", str: "a text"}


def _kind(value: object) -> str:
    """What a value is in JSON's words; numbers of a list are named so too, whatever their size."""
    return _KINDS.get(type(value), "such a number")
