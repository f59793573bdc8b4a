// SPDX-License-Identifier: Apache-2.0
// An ordinary task that is run in the template for nothing: what it makes the engine compile and load, each child finds
// done. Nothing in it may be random, nor change what is there.
const lib = (name) => { try { return require(name) } catch { return null } };
const pad = (n) => String(n).padStart(2, '0');
async function main({ items, text, n }) {
  class Total { #sum = 0; add(x) { this.#sum += x; return this; } get sum() { return this.#sum; } }
  const total = new Total();
  for (const item of items) total.add(item.price * item.count);
  const words = text.split(/\s+/).filter(Boolean).map((w) => w.toUpperCase()).sort();
  const date = new Date(86400000 * 365);
  console.log('total', total.sum, { words }, `${date.getFullYear()}-${pad(date.getMonth() + 1)}`);
  await delay(1);
  const late = await new Promise((resolve) => setTimeout(resolve, 1, n));
  const local = [date.toLocaleString('zh-CN', { timeZone: 'Asia/Shanghai' }), (1234567.5).toLocaleString('en-US'),
    new Intl.NumberFormat('zh-CN', { style: 'currency', currency: 'CNY' }).format(n), ['b', 'a'].sort((x, y) => x.localeCompare(y))];
  const again = JSON.parse(JSON.stringify({ items, map: Object.fromEntries(Object.entries({ a: 1 })) }));
  let failed; try { null.x } catch (error) { failed = error.message }
  const _ = lib('lodash'), moment = lib('moment'), dayjs = lib('dayjs'), qs = lib('qs'), C = lib('crypto-js'), url = lib('url');
  const modules = [
    _ && [_.groupBy(items, 'count'), _.sumBy(items, 'price'), _.map(items, 'price'), _.get(items, '[0].price'), _.sortBy(items, ['price']),
      _.uniq([1, 1]), _.chunk([1, 2, 3], 2), _.cloneDeep(items), _.merge({ a: 1 }, { b: 2 }), _.isEmpty({}), _.pick({ a: 1 }, ['a']), _.mapValues({ a: 1 }, String)],
    moment && [moment.utc(0).format('YYYY-MM-DD HH:mm:ss'), moment('2024-01-02').add(1, 'day').format(), moment('2024-01-02', 'YYYY-MM-DD').isValid()],
    dayjs && [dayjs('2024-01-02').add(1, 'day').format('YYYY-MM-DD'), dayjs(0).valueOf()],
    qs && [qs.stringify({ a: { b: [1] } }), qs.parse('a[b]=1&c=2')],
    C && [C.MD5(text).toString(), C.SHA256(text).toString(), C.HmacSHA256(text, 'k').toString(C.enc.Base64)],
    url && [url.parse('http://a:1/b?c=1', true).query, new URL('/x?y=1', 'https://example.com/').href, new URLSearchParams('a=1').get('a')],
  ];
  const bytes = new TextDecoder().decode(new TextEncoder().encode(text));
  return { total: total.sum, words, late, local, again, failed, modules, bytes, size: countToken(text), base: strToBase64(text), sign: createHmac('sha256', 'k').sign,
    date, map: new Map([['k', 1]]), set: new Set([1]), big: 10n, nan: NaN, buffer: Buffer.from(text).toString('base64'), clone: structuredClone({ a: [1] }) };
}
