"""Whether a name or a text could be a secret: rather too much is suspected than too little."""

from __future__ import annotations

import re

_SECRET_WORD = (
    "TOKEN(?!IZ)|KEY|SECRET|(?<!BY)PASS(?!ES)|PWORD|PWD|CREDENTIAL|AUTH|CERT|COOKIE|SESSION|"
    "PRIVATE|SIGNATURE|LOGIN|PROXY|BEARER|LICENSE|WEBHOOK|ACCOUNT|USER|PHRASE|SALT|EMAIL|DSN|CRYPT"
)
_SHORT = "AK|SK|PSK|OTP|PIN|PW|CREDS?|JWT|SIG"
_SECRET_NAME = re.compile(
    rf"""
    {_SECRET_WORD}
    | (?:^|_) (?:{_SHORT}) [0-9]* (?:_|$)
    """,
    re.IGNORECASE | re.VERBOSE,
)
# What a compiler calls a pass.
_COMPILER_PASS = re.compile(
    r"(?:^|_)(?:GRAPH|KERNEL|FUSION|OPT|IR|COMPILER?)_PASS(?:_|$)", re.IGNORECASE
)
_PASSWORD_TOOLS = "mysql|mariadb|mongo|redis-cli|psql|smbclient|ldap|docker|helm|svn|lftp"
_SECRET_VALUE = re.compile(
    rf"""
    -----BEGIN                                        # PEM
    | : [^\s@]* @                                     # user:password@, with or without a scheme
    | (?:{_SECRET_WORD}) [\w-]* ["']? \s* [=:]   # token=…, "api_key": …
    | (?<![a-z0-9]) (?:{_SHORT}) ["']? \s* [=:]       # &sig=…, pw: …
    | (?:^|[\s"'=,;]) -{{1,2}} [\w-]* (?:{_SECRET_WORD}) [\w-]* \s+ \S  # --password …
    | (?:^|[\s"'=,;]) -{{1,2}} (?:{_SHORT}) \s+ \S    # --pw …
    | \b (?:PASSWORD|PASSWD|PASSPHRASE|PWD|SECRET) \s+ \S
    | \b sshpass \b
    | \b (?:{_PASSWORD_TOOLS}) \w* \b .* \s -[pPaw]    # mysql -p…
    | (?:^|\s) -\w*u \s* [^\s:]+ : \S                # curl -u user:password
    | \b(?:bearer|basic)\s+\S
    | \beyJ[\w-]{{8,}}                                # JSON web tokens
    | (?:AKIA|ASIA)[0-9A-Z]{{12,}}
    | \b(?:gh[a-z]_|github_pat_|glpat-|sk-|pk-|hf_|xox[a-z]-|AIza)[\w-]{{8,}}
    | [0-9a-f]{{8}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{12}}
    """,
    re.IGNORECASE | re.VERBOSE,
)
_RUN = re.compile(r"[A-Za-z0-9]{16,}")  # letters and digits without anything between them
_PIECE = re.compile(r"[A-Za-z0-9+/_-]{20,}")  # the same with what base64 has between them
_BETWEEN_TOKENS = re.compile(r"""[\s:;,="'()\[\]{}]+""")
_PATH = re.compile(r"(?:[/~]|\.\.?/)")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_UNSPEAKABLE = re.compile(r"[b-df-hj-np-tv-xz]{6,}", re.IGNORECASE)

# Keys of a configuration: `num_key_value_heads` and `pad_token` are no secrets, `api_key` is.
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_KEY = re.compile(
    r"""
    PASSWORD | PASSWD | PASSPHRASE | PWORD | PWD | SECRET | CREDENTIAL | COOKIE | BEARER | WEBHOOK
    | (?:API|ACCESS|PRIVATE|ENCRYPTION|SIGNING|LICENSE|AUTH|SSH|ACCOUNT) _? (?:KEY|TOKEN)
    | (?:^|_) (?:AK|SK|PSK|OTP|PIN|PW|PASS|CREDS?|JWT|SIG) (?:_|$)
    """,
    re.IGNORECASE | re.VERBOSE,
)
_MODEL_TOKEN = re.compile(
    r"(?:^|_)(?:bos|eos|pad|unk|sep|cls|mask|special|stop|image|start|end)_tokens?$", re.IGNORECASE
)


def is_secret_name(name: str) -> bool:
    """Return whether an environment variable of this name could hold a secret."""
    if _COMPILER_PASS.search(name):
        name = re.sub("PASS", "", name, flags=re.IGNORECASE)
    return _SECRET_NAME.search(name) is not None


def is_secret_key(key: str) -> bool:
    """Return whether a key of a configuration surely names a secret, even if that is a number."""
    return _SECRET_KEY.search(_snake(key)) is not None


def could_name_text(key: str) -> bool:
    """Return whether a key of a configuration could name a secret, if its value is a text."""
    key = _snake(key)
    return is_secret_name(key) and not _MODEL_TOKEN.search(key)


def _snake(key: str) -> str:
    return re.sub(r"[\W]+", "_", _CAMEL.sub("_", key))


def could_be_secret(text: str, most: int = 1000) -> bool:
    """Return whether a text looks like a credential: a URL with a password, a token, a PEM block.

    Names are made of words, and tokens are not: rather too much is suspected than too little.

    Args:
        most: how many of its characters are looked at.
    """
    value = text[:most]
    if _SECRET_VALUE.search(value):
        return True
    if any(_looks_random(run) for run in _RUN.findall(value)):
        return True
    for token in _BETWEEN_TOKENS.split(value):
        parts = token.split("/") if _PATH.match(token) else [token]
        if any(_mixes(piece) for part in parts for piece in _PIECE.findall(part)):
            return True
    return False


def _mixes(piece: str) -> bool:
    kinds = ("[a-z]", "[A-Z]", "[0-9]")
    all_kinds = all(re.search(kind, piece) for kind in kinds)
    return _mean_word(piece) < (3.5 if all_kinds else 2.7)


def _looks_random(run: str) -> bool:
    if run.isdigit():
        return len(run) >= 20
    digits = re.findall("[0-9]+", run)
    if digits and re.fullmatch("[0-9a-f]+|[0-9A-F]+", run):
        return True
    if len(run) >= 20 and len(digits) >= 2:
        return True
    return _mean_word(run) < 3 or _UNSPEAKABLE.search(run) is not None


def _mean_word(text: str) -> float:
    words = _WORD.findall(text)
    return sum(map(len, words)) / len(words) if words else 0.0
