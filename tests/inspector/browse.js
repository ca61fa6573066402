// Opens a page of nano-inspect --web in Chromium, as test_browser.py says: node browse.js PACKAGES CHROMIUM URL PICTURE
// Prints one JSON object: what the terminal in the page was sent after each key, and whether the page noticed the end.
const [packages, executablePath, url, picture] = process.argv.slice(2);
const { chromium } = require(`${packages}/node_modules/playwright-core`);

const plain = (text) => text.replace(/\x1b\[[0-?]*[ -/]*[@-~]/g, " ").replace(/\x1b[^[]/g, " ");

(async () => {
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
  try {
    const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
    const foreign = []; // addresses of other machines that the page asks for, whether or not it may load them
    await page.route((at) => at.origin !== new URL(url).origin, (route) => {
      foreign.push(route.request().url());
      return route.abort();
    });
    page.on("console", (said) => { if (/Content Security Policy/.test(said.text())) foreign.push(said.text()); });
    let sent = "";
    page.on("websocket", (socket) =>
      socket.on("framereceived", ({ payload }) => { sent += payload.toString("utf-8"); }),
    );
    const until = async (pattern) => {
      const end = Date.now() + 60000;
      while (!pattern.test(plain(sent))) {
        if (Date.now() > end) throw new Error(`never ${pattern}: ${plain(sent).slice(-2000)}`);
        await page.waitForTimeout(50);
      }
      const text = plain(sent);
      sent = "";
      return text;
    };
    await page.goto(url);
    await page.waitForSelector("body.-first-byte", { timeout: 60000 });
    const first = await until(/live sequences[^]*q\s+quit/);
    await page.waitForTimeout(1500); // xterm.js paints
    await page.screenshot({ path: picture });
    await page.mouse.click(640, 500);
    await page.waitForTimeout(300);
    sent = "";
    await page.keyboard.press("3");
    const blocks = await until(/by owner/);
    await page.keyboard.press("q");
    await page.waitForSelector("body.-closed", { timeout: 30000 });
    console.log(JSON.stringify({ first, blocks, foreign, closed: true }));
  } finally {
    await browser.close();
  }
})().catch((error) => { console.error(String(error)); process.exit(1); });
