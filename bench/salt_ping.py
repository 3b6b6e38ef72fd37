"""Salt as a peer: one LocalClient, kept, and `test.ping` again and again.

Started with the folder of the master's configuration and the number of minions. Each line on standard input is a number of
milliseconds; the answer is a line of JSON with the time of every call that all minions answered, in microseconds.
"""
import json
import sys
import time

import salt.client
import salt.exceptions

folder, minions = sys.argv[1], int(sys.argv[2])
client = None


def ping():
    """The time of one call until the last minion has answered, or None if one did not."""
    started = time.perf_counter()
    try:
        answers = client.cmd("*", "test.ping", timeout=10)
    except salt.exceptions.SaltClientError:
        return None
    taken = (time.perf_counter() - started) * 1e6
    return taken if list(answers.values()) == [True] * minions else None


deadline = time.monotonic() + 300
while client is None or ping() is None:
    if time.monotonic() > deadline:
        print(json.dumps({"error": "the minions do not answer"}), flush=True)
        sys.exit(1)
    time.sleep(0.5)
    # A client that was created before the master was ready never finds it.
    client = salt.client.LocalClient(folder + "/master")
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    end = time.monotonic() + int(line) / 1000
    times = [ping()]
    while time.monotonic() < end:
        times.append(ping())
    if None in times:
        print(json.dumps({"error": "a minion did not answer"}), flush=True)
    else:
        print(json.dumps({"us": times}), flush=True)
