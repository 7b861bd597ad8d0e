// Ask the search of the built site, as its page does: node search.js SITE QUERY...; prints the places found, best first, by query.
const fs = require("fs"), path = require("path"), vm = require("vm");
const [site, ...queries] = process.argv.slice(2);
const workers = path.join(site, "assets/javascripts/workers");
const program = fs.readFileSync(path.join(workers, fs.readdirSync(workers).find((name) => name.endsWith(".js"))), "utf8");
const context = { console, setTimeout, URL };
context.self = context;
vm.runInNewContext(fs.readFileSync(path.join(site, "search/search_index.js"), "utf8"), context);
let ask, answer;
context.addEventListener = (_, handler) => { ask = handler; };
context.postMessage = (message) => answer(message);
vm.runInNewContext(program, context);
const call = (type, data) => new Promise((resolve) => { answer = resolve; ask({ data: { type, data } }); });
(async () => {
  const { config, docs } = context.__index;
  await call(0, { config, docs, options: { suggest: false } });
  const found = {};
  for (const query of queries) found[query] = (await call(2, query)).data.items.map((group) => group[0].location);
  console.log(JSON.stringify(found));
})();
