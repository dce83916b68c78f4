"""One secret of each kind that the built-in patterns know, none of them real."""

import base64
import json
from pathlib import Path

from agent_checkpoint import CheckpointManager
from agent_checkpoint.store.objects.object_format import open_object

SECRETS = {
    "openai-key": "sk-proj-Zx81kd0dJw2nQ7vLmP4sT6yU",
    "openai-key, old": "sk-Zx81kd0dJw2nQ7vLmP4sT6yUa9Bc3De5Fg7Hi1Jk2Lm4No6P",
    "anthropic-key": "sk-ant-api03-Zx81kd0dJw2nQ7vLmP4sT6yUa9Bc3De",
    "google-key": "AIzaSyZx81kd0dJw2nQ7vLmP4sT6yUa9Bc3De5F",
    "aws-key": "AKIAZX3LKD2DJW4NQ7VL",
    "github-token": "ghp_Zx81kd0dJw2nQ7vLmP4sT6yUa9Bc3De5Fg7H",
    "github-token, fine-grained": "github_pat_11ABCDEFG0Zx81kd0dJw2n_Q7vLmP4sT6yUa9Bc3De5Fg7Hi1Jk2",
    "gitlab-token": "glpat-Zx81kd0dJw2nQ7vLmP4s",
    "slack-token": "xoxb-817263549012-Zx81kd0dJw2nQ7vL",
    "stripe-key": "sk_live_Zx81kd0dJw2nQ7vLmP4sT6yU",
    "hugging-face-token": "hf_Zx81kd0dJw2nQ7vLmP4sT6yUa9Bc3De5Fg",
    "npm-token": "npm_Zx81kd0dJw2nQ7vLmP4sT6yUa9Bc3De5Fg7H",
    "pypi-token": "pypi-AgEIcHlwaS5vcmcCJZx81kd0dJw2nQ7vLmP4sT6yUa9Bc3De5Fg7Hi1Jk2Lm4",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ6eDgxa2QwZCJ9.dozjgNryP4J3jVmNHl0w5NXgL0n3I9PlF",
    "private-key": (
        "-----BEGIN RSA PRIVATE KEY-----\n"
        "MIIEpAIBAAKCAQEAZx81kd0dJw2nQ7vLmP4sT6yUa9Bc3De5Fg7Hi1Jk2Lm4No6P\n"
        "qR8sT0uV2wX4yZ6aB8cD0eF2gH4iJ6kL8mN0oP2qR4sT6uV8wX0yZ2aB4cD6eF8g\nhI0jK2==\n"
        "-----END RSA PRIVATE KEY-----"
    ),
    "authorization": "Authorization: Bearer Zx81kd0dJw2nQ7vL",
    "url-password": "postgresql://agent:Zx81kd0dJw@db.example.com/prod",
    "assignment": "password = Zx81kd0dJw2n!",
}
"""The text to plant, by kind."""

CORES = {
    **SECRETS,
    "private-key": "qR8sT0uV2wX4yZ6aB8cD0eF2gH4iJ6kL8mN0oP2qR4sT6uV8wX0yZ2aB4cD6eF8g",
    "authorization": "Zx81kd0dJw2nQ7vL",
    "url-password": "Zx81kd0dJw",
    "assignment": "Zx81kd0dJw2n",
}
"""What must not be in a store, by kind; the rest of the text may."""


def places(manager: CheckpointManager, secret: str, folder: "Path | None" = None) -> "list[str]":
    """Return where a store has the secret: in streams, objects (decompressed), and raw files."""
    plain = secret.encode()
    forms = {plain, json.dumps(secret)[1:-1].encode()}
    forms |= {base64.b64encode(bytes(shift) + plain)[4:-4] for shift in range(3)}
    backend = manager.store.backend
    content: dict[str, bytes] = {}
    for stream in [name for kind in ("key/", "fx/", "meta/") for name in backend.streams(kind)]:
        content[f"the name {stream}"] = stream.encode()
        content.update({f"{stream}@{seq}": data for seq, data in backend.read(stream)})
    names = [info.id for info in backend.list_objects()]
    for name, stored in backend.get_objects(names).items():
        content[f"object {name}"] = open_object(name, stored).payload
    for path in sorted(folder.rglob("*")) if folder is not None else ():
        if path.is_file():
            content[str(path)] = path.read_bytes()
    return [where for where, data in content.items() if any(form in data for form in forms)]
