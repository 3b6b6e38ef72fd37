"""Hooks of schemathesis for gpuaas: the callers, the existing resources, and sensible requests.

Left alone it makes up every id and every name, and hardly a request gets past "there is no such thing". So ids are taken from earlier
answers most of the time, and now and then a body is one that the server can fulfill. All the rest is as schemathesis made it. Streams are
read up to their first event, which is checked like a document.
"""

import atexit
import collections
import itertools
import json
import os
import re
import time
import zlib

import schemathesis

# Callers with the same permissions, one after the other, so that none of them hits a rate limit.
KEYS = [key for key in os.environ.get("GPUAAS_CHECK_KEYS", "").split(",") if key]
FIGURES = os.environ["GPUAAS_CHECK_FIGURES"]
# The ids that one round has seen are used by the next one.
KNOWN = os.environ["GPUAAS_CHECK_KNOWN"]

SSH_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f check"
DIGEST = "sha256:" + "0" * 64
ID = re.compile(r"\b([a-z]+_)[0-9a-f]{32}\b")
# Signing keys have names instead of ids.
SIGNING_KEY = "signing key"
# The newest ids of each kind; older ones are likely to be deleted.
KEPT = 12

turn = itertools.count()
number = itertools.count(int(time.time()) % 1_000_000 * 1000)
# By prefix: the id, and the segments of the path under which it was seen.
known = collections.defaultdict(lambda: collections.deque(maxlen=KEPT))
answers = collections.defaultdict(collections.Counter)


def fresh(name):
    return f"{name}-{next(number)}"


def soon(hours):
    return int((time.time() + hours * 3600) * 1_000_000)


def slice_create():
    return {
        # The other host is for allocations.
        "node": "sim-mi300x",
        "slots": [next(turn) % 8],
        "vm_name": fresh("guest"),
        "image": {"url": "https://images.example.com/any.img", "sha256": DIGEST},
        "ssh_public_keys": [SSH_KEY],
    }


def image_create():
    return {"name": fresh("image"), "url": "https://images.example.com/any.img", "sha256": DIGEST}


def member_add(role):
    return {"email": fresh("somebody") + "@example.org", "role": role}


# Bodies that the server of `gpuaas dev` can fulfill, by operation.
BODIES = {
    "allocation_create": lambda: {
        "name": fresh("guest"), "sku": "h100-1x", "image": "ubuntu", "ssh_public_keys": [SSH_KEY], "wait_seconds": 60,
    },
    "allocation_extend": lambda: {"by_seconds": 60},
    "api_token_create": lambda: {"name": fresh("token"), "role": "support"},
    "image_create": image_create,
    "maintenance_announce": lambda: {
        "summary": "New fans", "nodes": ["sim-h100"], "starts_at": soon(1), "ends_at": soon(2),
    },
    "organization_create": lambda: {"name": fresh("org")},
    "organization_member_add": lambda: member_add("member"),
    "organization_member_change": lambda: {"role": "viewer"},
    "platform_member_add": lambda: member_add("support"),
    "platform_member_change": lambda: {"role": "operator"},
    "project_create": lambda: {"name": fresh("project")},
    "project_image_create": image_create,
    "project_member_add": lambda: member_add("member"),
    "project_member_change": lambda: {"role": "viewer"},
    "service_account_create": lambda: {"name": fresh("account"), "role": "viewer"},
    "sku_create": lambda: {"name": fresh("sku"), "kind": "slice", "slots": 1, "price_per_hour": 1},
    "slice_create": slice_create,
    "slice_power": lambda: {"action": "reboot"},
    "ssh_key_add": lambda: {"name": fresh("key"), "public_key": SSH_KEY},
    "task_create": lambda: {"node": "sim-h100", "task_type": "diag.ping", "params": {"message": "hello"}},
    "user_create": lambda: {"email": fresh("somebody") + "@example.org"},
    "user_password_set": lambda: {},
    "webhook_create": lambda: {"url": "https://hooks.example.com/" + fresh("hook")},
}


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """Translates the description of streams in our document into keywords that schemathesis knows."""
    for methods in raw_schema["paths"].values():
        for operation in methods.values():
            for response in operation["responses"].values():
                content = response.get("content", {})
                if "application/x-ndjson" in content:
                    lines = content["application/x-ndjson"]
                    lines["schema"] = {"type": "array", "items": lines["schema"]}
                if "text/event-stream" in content:
                    events = content["text/event-stream"].pop("x-gpuaas-events")
                    content["text/event-stream"]["schema"] = {"oneOf": [event(name, of) for name, of in events.items()]}


def event(name, schema):
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}
    return {"type": "object", "required": ["event", "data"], "properties": {"event": {"const": name}, "data": data}}


@schemathesis.deserializer("application/x-ndjson")
def lines_of(context, response):
    return [json.loads(line) for line in response.content.splitlines()]


def name_of(case):
    return case.operation.definition.raw.get("operationId", "")


def prefix_of(case, parameter):
    """Returns the prefix of the ids that a segment of the path accepts, from its pattern."""
    for described in case.operation.path_parameters:
        if described.name == parameter:
            pattern = described.definition.get("schema", {}).get("pattern", "")
            match = re.match(r"\^([a-z]+_)\[0-9a-f\]\{32\}\$$", pattern)
            return match.group(1) if match else {"node": "node_", "sku": "sku_", "key": SIGNING_KEY}.get(parameter)
    return None


def take_known(case):
    """Replaces the ids in the path with those of a resource that existed a moment ago."""
    segments = list(case.path_parameters or {})
    for parameter in reversed(segments):
        prefix = prefix_of(case, parameter)
        if prefix is None or not known[prefix]:
            continue
        places = [place for place in known[prefix] if place[1].keys() >= set(segments) - {parameter}] or list(known[prefix])
        identifier, parents = places[next(turn) % len(places)]
        case.path_parameters[parameter] = identifier
        case.path_parameters.update({name: value for name, value in parents.items() if name in segments})
        return


@schemathesis.hook
def before_call(context, case, kwargs):
    if KEYS:
        case.headers["Authorization"] = "Bearer " + KEYS[next(turn) % len(KEYS)]
    if case.method.upper() != case.operation.method.upper():
        return
    # Depends on the generated values, so that a repeated request is treated in the same way.
    chance = zlib.crc32(repr((case.path_parameters, case.query, case.body)).encode("utf-8", "replace"))
    if case.path_parameters and chance % 4:
        take_known(case)
    if name_of(case) in ("events", "project_events") and chance % 8:
        # From the beginning: the first event exists already, so the request does not wait.
        case.query = {**(case.query or {}), "after": 0}
        case.query.pop("kinds", None)
        case.headers.pop("Last-Event-ID", None)
    if chance // 8 % 3:
        # Otherwise the same few keys are repeated with other bodies, and nothing is done.
        case.headers.pop("Idempotency-Key", None)
    request = BODIES.get(name_of(case))
    if request and chance // 4 % 2:
        case.body = request()
        case.media_type = "application/json"
        for header in ("Idempotency-Key", "If-Match"):
            case.headers.pop(header, None)


@schemathesis.hook
def after_call(context, case, response):
    answers[name_of(case)][response.status_code] += 1
    # `OPTIONS` is answered without a document.
    if not 200 <= response.status_code < 300 or not response.content:
        return
    text = response.content[:200_000].decode("utf-8", "replace")
    parents = dict(case.path_parameters or {})
    found = [(match.group(1), match.group(0)) for match in ID.finditer(text)]
    if name_of(case).startswith("signing_key"):
        found.extend((SIGNING_KEY, key["key_id"]) for key in json.loads(text)["items"])
    for prefix, identifier in found:
        if all(identifier != earlier for earlier, _ in known[prefix]):
            known[prefix].append((identifier, parents))


if os.path.exists(KNOWN):
    with open(KNOWN, encoding="utf-8") as earlier:
        for prefix, places in json.load(earlier).items():
            known[prefix].extend(places)


@atexit.register
def write():
    for path, content in ((FIGURES, answers), (KNOWN, {prefix: list(places) for prefix, places in known.items()})):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)
