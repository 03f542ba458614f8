"""The user's mistakes: the one exception that the command line turns into one line and exit status 2, and its words."""

from npx.messages import nearest as nearest
from npx.messages import one_line as one_line


class UserError(Exception):
    """A mistake of the user's, told in one line: `what: expected ...; got ...; try ...`."""

