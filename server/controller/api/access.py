"""Access-control entries: which resources a user may read or change, parsed and matched as in Pravega.

An entry is `resource,permission`. The resource is a Java regular expression for whole resource names, in which every
`*` stands for `.*`; an expression that does not begin with `prn` matches nothing. The first entry that matches decides.
Malformed entries are skipped.

Patterns run in linear time (`segstore.wire.patterns`), because callers choose the names that are matched.
They are translated token by token. Invariant: an entry grants exactly the permissions that it grants in Pravega, or
calls that reach it are refused. Refused are invalid regular expressions, on which Pravega also fails, and features that
the engine or the translation lacks: flags, look-around, back-references, named groups, possessive quantifiers, nested
classes, `\\b`, `\\p{…}`, and characters given by their codes.

Follows `AccessControlEntry`, `AclAuthorizerImpl` and `PasswordAuthHandler.parseAcl`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from segstore.server.auth import Permission
from segstore.server.controller.errors import UnusableEntry
from segstore.wire.patterns import PatternError, linear

_DOMAIN: Final = "prn"
_JAVA_SPACE: Final = "".join(map(chr, range(0x21)))
"""The characters that `String.trim` removes."""

_CLASSES: Final = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "s": r"[\t-\r ]",
    "S": r"[^\t-\r ]",
}
_ANY: Final = r"[^\n\r\x{85}\x{2028}\x{2029}]"
_CHARACTER: Final = r"\\[^A-Za-z0-9]|[^\\\[\]&-]|&(?!&)"
_ELEMENT: Final = rf"\\[dDsSwW]|(?:{_CHARACTER})(?:-(?:{_CHARACTER}))?"
_IN_SET: Final = re.compile(rf"\\([dDsSwW])|({_CHARACTER})(?:-({_CHARACTER}))?|(.)", re.DOTALL)
_TOKEN: Final = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|\Z)"
    r"|\\(?P<class>[dDsSwW])"
    r"|\\(?P<escaped>[^A-Za-z0-9])"
    r"|(?P<any>\.)"
    rf"|\[(?P<not>\^?+)(?P<set>(?:(?:\](?!-)|-)(?:{_ELEMENT})*|(?:{_ELEMENT})+)-?)\]"
    r"|(?P<same>(?:[*+?]|\{[0-9]{1,3}\})\??(?![*+?{])|\((?!\?)|\(\?:|[)|^$])"
    r"|(?P<literal>[^\\\[(*+?{])",
    re.DOTALL,
)
"""A token of a Java pattern that can be translated. The last group that matched is its kind."""


class AclEntry(NamedTuple):
    """A permission. matches: whether it applies to a resource; None for a pattern that cannot be matched."""

    matches: Callable[[str], bool] | None
    permission: Permission


def permission_of(entries: Iterable[AclEntry], resource: str) -> Permission:
    """The permission that entries grant for a resource. Raises UnusableEntry."""
    for matches, permission in entries:
        if matches is None:
            raise UnusableEntry(resource)
        if matches(resource):
            return permission
    return Permission.NONE


def read_entries(text: str) -> tuple[list[AclEntry], list[str]]:
    """Returns the entries in a text, separated by `;`, and the problems of entries that do not work as written."""
    entries: list[AclEntry] = []
    problems: list[str] = []
    for entry in filter(None, text.strip(_JAVA_SPACE).split(";")):
        resource, *rest = entry.rstrip(",").split(",")
        pattern, permission = resource.strip(_JAVA_SPACE), ",".join(rest).strip(_JAVA_SPACE)
        if not resource or permission not in Permission.__members__:
            problems.append("an entry that is not resource,permission is skipped")
        elif not pattern.startswith(_DOMAIN):
            problems.append("an entry that does not begin with prn grants nothing")
        else:
            matches = _matcher(pattern.replace("*", ".*"))
            if matches is None:
                problems.append("an entry is not a supported regular expression; calls that reach it are refused")
            entries.append(AclEntry(matches, Permission[permission]))
    return entries, problems


def _matcher(pattern: str) -> Callable[[str], bool] | None:
    """Returns a function that matches whole texts with a Java pattern; None if the pattern cannot be translated."""
    translated, at = "", 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            return None
        translated += _translated(token)
        at = token.end()
    try:
        linear(translated)  # also alone: an unmatched parenthesis could close the group around it
        return linear(rf"\A(?:{translated})\z")
    except PatternError:
        return None


def _translated(token: re.Match[str]) -> str:
    kind = str(token.lastgroup)
    text = token[kind]
    match kind:
        case "class":
            return _CLASSES[text]
        case "any":
            return _ANY
        case "same":
            return text
        case "set":
            return f"[{token['not']}{_IN_SET.sub(_in_set, text)}]"
        case _:
            return re.escape(text)


def _in_set(element: re.Match[str]) -> str:
    kind, low, high, alone = element.groups("")
    if kind:
        return _CLASSES[kind]
    return "-".join(re.escape(character[-1]) for character in (low or alone, high) if character)
