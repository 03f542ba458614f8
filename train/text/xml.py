"""Sanitize text for XML, the format of SVG pictures."""

import re

_INVALID = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def xml_safe(text: str) -> str:
    """Replace the characters that XML 1.0 does not allow with U+FFFD, so that browsers accept the text."""
    return _INVALID.sub("\ufffd", text)
