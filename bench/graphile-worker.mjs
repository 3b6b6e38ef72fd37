// graphile-worker as a peer. Started with the folder of node_modules and the address of a database. It reads commands as lines
// of JSON on standard input, and answers each with a line of JSON on standard output.
//   {"do":"throughput","mode":"unbatched"|"batched","ms":2000,"in_flight":8}  -> {"per_second":…,"done":…}
//   {"do":"latency","ms":2000,"per_second":20}                                -> {"us":[…]}   (add call → task function entered)
import { createRequire } from "node:module";
import readline from "node:readline";
import { EventEmitter } from "node:events";

const [modules, connectionString] = process.argv.slice(2);
const { run, makeWorkerUtils, Logger } = createRequire(modules + "/")("graphile-worker");
// By default it logs every job, which costs more than the job.
const logger = new Logger(() => () => {});

let entered = () => {};
const taskList = { job: async (payload) => entered(payload) };

async function start(mode) {
  const worker = {
    connectionString,
    concurrentJobs: mode === "batched" ? 32 : 8,
    maxPoolSize: 40,
    pollInterval: 1000,
    ...(mode === "batched" ? { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } : {}),
  };
  const events = new EventEmitter();
  const preset = { worker: { ...worker, logger } };
  const runner = await run({ preset, taskList, events, noHandleSignals: true });
  const utils = await makeWorkerUtils({ preset });
  return { runner, utils, events };
}

async function stop({ runner, utils }) {
  await runner.stop();
  await utils.release();
}

async function throughput({ mode, ms, in_flight }) {
  const parts = await start(mode);
  const waiting = new Map();
  let done = 0;
  parts.events.on("job:complete", ({ job, error }) => {
    if (error) throw error;
    done += 1;
    waiting.get(job.id)?.();
    waiting.delete(job.id);
  });
  const started = performance.now();
  const over = () => performance.now() - started >= ms;
  if (mode === "batched") {
    // A producer that adds 100 jobs with one statement and keeps `in_flight` jobs unfinished.
    let added = 0;
    while (!over()) {
      if (added - done > in_flight - 100) {
        await new Promise((resolve) => setImmediate(resolve));
        continue;
      }
      const jobs = Array.from({ length: 100 }, (_, n) => ({ identifier: "job", payload: { n: added + n, text: "m".repeat(64) } }));
      await parts.utils.addJobs(jobs);
      added += 100;
    }
  } else {
    // Each of `in_flight` callers adds a job and waits for its end before it adds the next.
    const caller = async () => {
      while (!over()) {
        const job = await parts.utils.addJob("job", { text: "m".repeat(64) });
        await new Promise((resolve) => {
          waiting.set(job.id, resolve);
          // It may be done before its id is known.
          if (completed.delete(job.id)) waiting.delete(job.id), resolve();
        });
      }
    };
    const completed = new Set();
    parts.events.on("job:complete", ({ job }) => waiting.has(job.id) || completed.add(job.id));
    await Promise.all(Array.from({ length: in_flight }, caller));
  }
  const seconds = (performance.now() - started) / 1000;
  const answer = { per_second: done / seconds, done };
  await stop(parts);
  return answer;
}

async function latency({ ms, per_second }) {
  const parts = await start("unbatched");
  const us = [];
  const began = new Map();
  entered = ({ n }) => us.push((performance.now() - began.get(n)) * 1000);
  const started = performance.now();
  const count = Math.max(1, Math.floor((ms / 1000) * per_second));
  const adding = [];
  for (let n = 0; n < count; n += 1) {
    // Open loop: the next call comes at its time, whatever the result of this one, and is timed from when it was due. Only the normal
    // delay of the timer is left out.
    const due = started + (n * 1000) / per_second;
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, due - performance.now())));
    const now = performance.now();
    began.set(n, now - due > 2 ? due : now);
    adding.push(parts.utils.addJob("job", { n }));
  }
  await Promise.all(adding);
  while (us.length < count) await new Promise((resolve) => setTimeout(resolve, 5));
  entered = () => {};
  await stop(parts);
  return { us };
}

const utils = await makeWorkerUtils({ preset: { worker: { connectionString, logger } } });
await utils.migrate();
await utils.release();
console.log(JSON.stringify({ ready: true }));
for await (const line of readline.createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  const answer = await (request.do === "latency" ? latency(request) : throughput(request));
  console.log(JSON.stringify(answer));
}
process.exit(0);
