// Azurite's blob service, for tests: `azure.js FOLDER ACCOUNT KEY CONTAINER`, where FOLDER has its `node_modules`. Prints `port N`; ends when its
// standard input does. Everything is kept in memory; the telemetry of Azurite's own command line is never started.
"use strict";

const crypto = require("crypto");
const path = require("path");
const { createRequire } = require("module");

const [folder, account, key, container] = process.argv.slice(2);
const load = createRequire(path.join(folder, "package.json"));
const BlobServer = load("azurite/dist/src/blob/BlobServer.js").default;
const BlobConfiguration = load("azurite/dist/src/blob/BlobConfiguration.js").default;

function configuration() {
  const [inMemory, anyApiVersion, nothing] = [true, true, undefined];
  // Seconds. Its default of five closes connections under a busy machine's feet: Node takes one for idle whose request it had no time to read.
  const keepAlive = 300;
  return new BlobConfiguration(
    "127.0.0.1", 0, keepAlive, nothing, nothing, nothing, false, nothing, false, nothing, false, anyApiVersion, "", "", "", nothing,
    false, inMemory,
  );
}

// A container is made by a request that is signed with the account's key.
async function makeContainer(port) {
  const date = new Date().toUTCString();
  const version = "2021-08-06";
  const headers = [`x-ms-date:${date}`, `x-ms-version:${version}`];
  const resource = [`/${account}/${account}/${container}`, "restype:container"];
  const text = ["PUT", ...Array(11).fill(""), ...headers, ...resource].join("\n");
  const signature = crypto.createHmac("sha256", Buffer.from(key, "base64")).update(text).digest("base64");
  const answer = await fetch(`http://127.0.0.1:${port}/${account}/${container}?restype=container`, {
    method: "PUT",
    headers: { "x-ms-date": date, "x-ms-version": version, authorization: `SharedKey ${account}:${signature}` },
  });
  if (answer.status !== 201) {
    throw new Error(`no container: ${answer.status} ${await answer.text()}`);
  }
}

async function main() {
  process.stdin.resume().on("end", () => process.exit(0));
  const server = new BlobServer(configuration());
  await server.start();
  const port = Number(new URL(server.getHttpServerAddress()).port);
  await makeContainer(port);
  console.log(`port ${port}`);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
