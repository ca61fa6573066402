// Perfetto's trace processor in Node: requests on stdin, replies on stdout, in the framing of TraceProcessorRpcStream.
// The engine is written for a browser's worker, whose globals it gets here. Its argument is the folder of the bundle.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const host = process;
const folder = host.argv[2];
const bytesOf = (url) => fs.readFileSync(path.join(folder, path.basename(String(url))));
const report = (...words) => host.stderr.write(words.join(" ") + "\n");

class SyncRequest {
  open(_method, url) { this.url = url; }
  send() {
    const bytes = bytesOf(this.url);
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
    this.status = 200;
  }
}

Object.assign(globalThis, {
  self: globalThis,
  WorkerGlobalScope: function () {},
  importScripts: () => {},
  location: { href: "http://local/engine_bundle.js" },
  XMLHttpRequest: SyncRequest,
  fetch: async (url) => new Response(bytesOf(url), { headers: { "content-type": "application/wasm" } }),
});
Object.assign(console, { log: report, warn: report, error: report });
Object.defineProperty(globalThis, "process", { value: undefined, configurable: true, writable: true });  // not Node
vm.runInThisContext(bytesOf("engine_bundle.js").toString("utf8"));

const { port1, port2 } = new MessageChannel();
port2.on("message", (reply) => host.stdout.write(Buffer.from(reply)));
self.onmessage({ data: port1 });
host.stdin.on("data", (request) => port2.postMessage(new Uint8Array(request)));
host.stdin.on("end", () => setTimeout(() => host.exit(0), 50));
