// Opens a trace in Perfetto's UI in a headless Chromium, all from this machine, and prints what it shows as JSON.
// Arguments: Chromium, the folder of the UI, the trace, and a file for a picture. NODE_PATH leads to playwright-core.
const fs = require("fs");
const http = require("http");
const path = require("path");
const { chromium } = require("playwright-core");

const [program, root, trace, picture] = process.argv.slice(2);
const TYPES = { ".js": "text/javascript", ".wasm": "application/wasm", ".html": "text/html", ".css": "text/css", ".json": "application/json" };
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"];

function serve(request, response) {
  const name = decodeURIComponent(request.url.split("?")[0]);
  const file = name === "/the.trace" ? trace : path.join(root, path.normalize(name === "/" ? "/index.html" : name));
  fs.readFile(file, (error, bytes) => {
    response.writeHead(error ? 404 : 200, { "content-type": TYPES[path.extname(file)] || "application/octet-stream" });
    response.end(error ? "" : bytes);
  });
}

async function ask(page, sql) {
  return page.evaluate(async (query) => {
    const rows = (await window.app.trace.engine.query(query)).iter({});
    const found = [];
    for (; rows.valid(); rows.next()) found.push(Number(rows.get("n")));
    return found[0];
  }, sql);
}

async function look(base, browser) {
  const context = await browser.newContext({ serviceWorkers: "block", viewport: { width: 1400, height: 1000 } });
  const ours = (url) => [base, "blob:", "data:"].some((start) => url.startsWith(start));
  await context.route("**/*", (route) => (ours(route.request().url()) ? route.continue() : route.abort()));
  const page = await context.newPage();
  const faults = [];
  page.on("pageerror", (error) => faults.push(String(error).slice(0, 300)));
  await page.goto(`${base}/#!/?url=${encodeURIComponent(base + "/the.trace")}`);
  await page.waitForFunction(() => window.app?.trace?.engine, null, { timeout: 60000 });
  await page.waitForFunction(() => window.app.trace.workspace?.flatTracks.some((node) => node.name === "Requests"));
  await page.evaluate(() => window.app.trace.workspace.flatTracks.forEach((node) => node.expand()));
  await page.getByText("free blocks", { exact: true }).first().waitFor({ timeout: 30000 });
  const errors = "select count(*) as n from stats where severity in ('error', 'data_loss') and value > 0";
  const seen = {
    faults,
    slices: await ask(page, "select count(*) as n from slice"),
    flows: await ask(page, "select count(*) as n from flow"),
    values: await ask(page, "select count(*) as n from counter"),
    errors: await ask(page, errors),
    tree: await page.evaluate(() => {
      const branch = (node) => [node.name, node.children.map(branch)];
      return window.app.trace.workspace.children.map(branch);
    }),
  };
  await page.waitForTimeout(500);
  await page.screenshot({ path: picture });
  return seen;
}

async function main() {
  const server = http.createServer(serve);
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  const browser = await chromium.launch({ executablePath: program, headless: true, args: FLAGS });
  try {
    console.log(JSON.stringify(await look(`http://127.0.0.1:${server.address().port}`, browser)));
  } finally {
    await browser.close();
    server.close();
  }
}

main().catch((error) => { console.error(error); process.exit(1); });
