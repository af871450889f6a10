'use strict';
// amqplib (Node.js): promise channels, confirm channels, small frames, and the errors it reports.

const assert = require('node:assert');
const amqp = require('amqplib');

const URL = process.env.AMQP_URL;
const LEPUS = process.env.INTEROP_LEPUS === '1';
const TEST_MS_MAX = 30000;
const tests = [];
const wanted = process.argv.slice(2);
let counter = 0;
let queues = [];
let exchanges = [];

class Skip extends Error {}

function test(name, run) {
  tests.push([name, run]);
}

function unique(kind) {
  return `interop.js.${kind}.${process.pid}.${counter++}`;
}

function queueName() {
  const name = unique('q');
  queues.push(name);
  return name;
}

function exchangeName() {
  const name = unique('x');
  exchanges.push(name);
  return name;
}

function deferred() {
  const result = {};
  result.promise = new Promise((resolve, reject) => Object.assign(result, { resolve, reject }));
  return result;
}

// A connection for the time of `use`; its errors are the test's business and end no process.
async function connected(use, parameters = '', frames = {}) {
  const connection = await amqp.connect(URL + parameters, frames);
  connection.on('error', () => {});
  try {
    return await use(connection);
  } finally {
    await connection.close().catch(() => {});
  }
}

async function channel(use, parameters = '') {
  return connected(async (connection) => {
    const ch = await connection.createConfirmChannel();
    ch.on('error', () => {});
    return use(ch, connection);
  }, parameters);
}

async function declared(ch, options = { durable: true }) {
  return (await ch.assertQueue(queueName(), options)).queue;
}

// Gathers the deliveries of a consumer; wait(n) resolves once n have come.
async function inbox(ch, queue, options = {}) {
  const box = { items: [], want: 0, reached: deferred() };
  const answer = await ch.consume(
    queue,
    (message) => {
      box.items.push(message);
      if (box.items.length >= box.want) box.reached.resolve();
    },
    options,
  );
  box.tag = answer.consumerTag;
  box.wait = async (count) => {
    box.want = count;
    box.reached = deferred();
    if (box.items.length >= count) return;
    await box.reached.promise;
  };
  return box;
}

// The error with which the broker closes what `provoke` used.
async function channelError(provoke) {
  return connected(async (connection) => {
    const ch = await connection.createChannel();
    const closed = deferred();
    ch.on('error', closed.resolve);
    await Promise.resolve(provoke(ch, connection)).catch(() => {});
    const error = await closed.promise;
    const other = await connection.createChannel();
    await other.assertQueue('', { exclusive: true });
    return error;
  });
}

function sameError(error, code, classId, methodId, text) {
  assert.strictEqual(error.code, code, error.message);
  assert.deepStrictEqual([error.classId, error.methodId], [classId, methodId], error.message);
  assert.ok(error.message.includes(text), error.message);
}

test('connects and closes', async () => {
  const connection = await amqp.connect(URL);
  const closed = deferred();
  connection.on('close', closed.resolve);
  await connection.close();
  assert.strictEqual(await closed.promise, undefined, 'a clean close has no error');
});

test('connects with frames of 4096 bytes', async () => {
  if (!LEPUS) throw new Skip('RabbitMQ 4 asks for 8192');
  await channel(async (ch) => {
    const queue = await declared(ch);
    for (const size of [0, 1, 4087, 4088, 4089, 300000]) {
      ch.sendToQueue(queue, Buffer.alloc(size, 'x'));
      await ch.waitForConfirms();
      const message = await ch.get(queue, { noAck: true });
      assert.strictEqual(message.content.length, size);
    }
  }, '?frameMax=4096');
});

test('small frames carry large bodies both ways', async () => {
  await channel(async (ch) => {
    const queue = await declared(ch);
    for (const size of [8183, 8184, 8185, 1 << 20]) {
      const body = Buffer.alloc(size, 'abcdefg');
      ch.sendToQueue(queue, body);
      await ch.waitForConfirms();
      assert.ok((await ch.get(queue, { noAck: true })).content.equals(body), `body of ${size}`);
    }
  }, '?frameMax=8192');
});

test('asserts, checks and deletes queues and exchanges', async () => {
  await channel(async (ch) => {
    const queue = await declared(ch);
    assert.deepStrictEqual(await ch.checkQueue(queue), { queue, messageCount: 0, consumerCount: 0 });
    for (const kind of ['direct', 'fanout', 'topic', 'headers']) {
      const name = exchangeName();
      await ch.assertExchange(name, kind, { durable: true });
      await ch.checkExchange(name);
      await ch.deleteExchange(name);
    }
    ch.sendToQueue(queue, Buffer.from('m'));
    await ch.waitForConfirms();
    assert.deepStrictEqual(await ch.deleteQueue(queue), { messageCount: 1 });
  });
});

test('a server-named queue', async () => {
  await channel(async (ch) => {
    const { queue } = await ch.assertQueue('', { exclusive: true });
    assert.match(queue, /^amq\.gen-/);
  });
});

test('publish, consume, ack', async () => {
  await channel(async (ch) => {
    const queue = await declared(ch);
    for (let n = 0; n < 200; n++) ch.sendToQueue(queue, Buffer.from(`${n}`), { persistent: true });
    await ch.waitForConfirms();
    const box = await inbox(ch, queue);
    await box.wait(200);
    assert.deepStrictEqual(box.items.map((m) => m.content.toString()), [...Array(200).keys()].map(String));
    for (const message of box.items) ch.ack(message);
    assert.strictEqual((await ch.checkQueue(queue)).messageCount, 0);
  });
});

test('ackAll settles everything', async () => {
  await connected(async (connection) => {
    const ch = await connection.createConfirmChannel();
    const queue = await declared(ch);
    for (let n = 0; n < 10; n++) ch.sendToQueue(queue, Buffer.from(`${n}`));
    await ch.waitForConfirms();
    const box = await inbox(ch, queue);
    await box.wait(10);
    ch.ackAll();
    await ch.close();
    const other = await connection.createChannel();
    assert.strictEqual((await other.checkQueue(queue)).messageCount, 0);
  });
});

test('nackAll requeues everything in order', async () => {
  await channel(async (ch) => {
    const queue = await declared(ch);
    for (let n = 0; n < 5; n++) ch.sendToQueue(queue, Buffer.from(`${n}`));
    await ch.waitForConfirms();
    for (let n = 0; n < 5; n++) assert.ok(await ch.get(queue));
    ch.nackAll(true);
    for (let n = 0; n < 5; n++) {
      const message = await ch.get(queue, { noAck: true });
      assert.strictEqual(message.content.toString(), `${n}`);
      assert.strictEqual(message.fields.redelivered, true);
    }
  });
});

test('reject without requeue drops', async () => {
  await channel(async (ch) => {
    const queue = await declared(ch);
    ch.sendToQueue(queue, Buffer.from('m'));
    await ch.waitForConfirms();
    ch.reject(await ch.get(queue), false);
    assert.strictEqual(await ch.get(queue), false);
  });
});

test('ten thousand confirms', async () => {
  await channel(async (ch) => {
    const queue = await declared(ch);
    let confirmed = 0;
    for (let n = 0; n < 10000; n++) {
      ch.sendToQueue(queue, Buffer.from('m'), {}, (error) => {
        if (!error) confirmed++;
      });
    }
    await ch.waitForConfirms();
    assert.strictEqual(confirmed, 10000);
    assert.strictEqual((await ch.checkQueue(queue)).messageCount, 10000);
  });
});

test('a return comes before its confirm', async () => {
  await channel(async (ch) => {
    const events = [];
    ch.on('return', (message) => events.push(message.fields.replyCode, message.properties.messageId));
    ch.publish('', unique('nobody'), Buffer.from('m'), { mandatory: true, messageId: 'id' }, () => events.push('confirm'));
    await ch.waitForConfirms();
    assert.deepStrictEqual(events, [312, 'id', 'confirm']);
  });
});

test('prefetch for each consumer', async () => {
  await channel(async (ch) => {
    const queue = await declared(ch);
    for (let n = 0; n < 20; n++) ch.sendToQueue(queue, Buffer.from(`${n}`));
    await ch.waitForConfirms();
    await ch.prefetch(4);
    const box = await inbox(ch, queue);
    await box.wait(4);
    // A round trip on the channel: one delivery too many would have come before its answer.
    assert.strictEqual((await ch.checkQueue(queue)).messageCount, 16);
    assert.strictEqual(box.items.length, 4);
    ch.ack(box.items[0]);
    await box.wait(5);
    assert.strictEqual((await ch.checkQueue(queue)).messageCount, 15);
    assert.strictEqual(box.items.length, 5);
  });
});

test('prefetch for the channel', async () => {
  await channel(async (ch) => {
    const [one, two] = [await declared(ch), await declared(ch)];
    for (let n = 0; n < 10; n++) for (const queue of [one, two]) ch.sendToQueue(queue, Buffer.from(`${n}`));
    await ch.waitForConfirms();
    await ch.prefetch(3, true);
    const boxes = [await inbox(ch, one), await inbox(ch, two)];
    const total = () => boxes[0].items.length + boxes[1].items.length;
    while (total() < 3) await ch.checkQueue(one);
    for (let n = 0; n < 20; n++) await ch.checkQueue(two);
    assert.strictEqual(total(), 3);
  });
});

test('cancel stops deliveries', async () => {
  await channel(async (ch) => {
    const queue = await declared(ch);
    const box = await inbox(ch, queue);
    await ch.cancel(box.tag);
    ch.sendToQueue(queue, Buffer.from('m'));
    await ch.waitForConfirms();
    assert.deepStrictEqual(await ch.checkQueue(queue), { queue, messageCount: 1, consumerCount: 0 });
    assert.strictEqual(box.items.length, 0);
  });
});

test('a deleted queue tells its consumer with null', async () => {
  await channel(async (ch, connection) => {
    const queue = await declared(ch);
    const box = await inbox(ch, queue);
    await (await connection.createChannel()).deleteQueue(queue);
    await box.wait(1);
    assert.strictEqual(box.items[0], null);
  });
});

test('recover redelivers', async () => {
  await channel(async (ch) => {
    const queue = await declared(ch);
    ch.sendToQueue(queue, Buffer.from('m'));
    await ch.waitForConfirms();
    const box = await inbox(ch, queue);
    await box.wait(1);
    await ch.recover();
    await box.wait(2);
    assert.deepStrictEqual(box.items.map((m) => m.fields.redelivered), [false, true]);
  });
});

test('headers and properties come back', async () => {
  await channel(async (ch) => {
    const queue = await declared(ch);
    const headers = {
      text: 'grün', yes: true, no: false, byte: 7, short: -300, int: 70000, long: 2 ** 40, double: 0.5, none: null,
      list: [1, 'two', [3]], table: { deep: { er: 1 } }, bytes: Buffer.from([0, 255]),
      stamp: { '!': 'timestamp', value: 1700000000 }, float: { '!': 'float', value: 0.25 },
      decimal: { '!': 'decimal', value: { places: 2, digits: 12345 } },
    };
    const properties = {
      contentType: 'a', contentEncoding: 'b', deliveryMode: 2, priority: 3, correlationId: 'c', replyTo: 'd',
      expiration: '3600000', messageId: 'e', timestamp: 1700000000, type: 'f', appId: 'g',
    };
    ch.sendToQueue(queue, Buffer.from('m'), { ...properties, headers });
    await ch.waitForConfirms();
    const got = (await ch.get(queue, { noAck: true })).properties;
    for (const [name, value] of Object.entries(properties)) assert.strictEqual(got[name], value, name);
    assert.deepStrictEqual({ ...got.headers, stamp: undefined }, { ...headers, float: 0.25, stamp: undefined });
    assert.strictEqual(got.headers.stamp.value, 1700000000);
  });
});

test('topic, fanout and headers exchanges', async () => {
  await channel(async (ch) => {
    const queue = await declared(ch);
    const [topic, fanout, headers] = [exchangeName(), exchangeName(), exchangeName()];
    await ch.assertExchange(topic, 'topic');
    await ch.assertExchange(fanout, 'fanout');
    await ch.assertExchange(headers, 'headers');
    await ch.bindExchange(fanout, topic, 'a.#');
    await ch.bindExchange(headers, fanout);
    await ch.bindQueue(queue, headers, '', { 'x-match': 'any', k: 'v', n: 1 });
    ch.publish(topic, 'a.b', Buffer.from('hit'), { headers: { k: 'v' } });
    ch.publish(topic, 'a.b', Buffer.from('wrong header'), { headers: { k: 'w' } });
    ch.publish(topic, 'b', Buffer.from('wrong key'), { headers: { k: 'v' } });
    await ch.waitForConfirms();
    assert.strictEqual((await ch.get(queue, { noAck: true })).content.toString(), 'hit');
    assert.strictEqual(await ch.get(queue), false);
  });
});

test('an alternate exchange', async () => {
  await channel(async (ch) => {
    const queue = await declared(ch);
    const [main, other] = [exchangeName(), exchangeName()];
    await ch.assertExchange(other, 'fanout');
    await ch.assertExchange(main, 'direct', { alternateExchange: other });
    await ch.bindQueue(queue, other, '');
    ch.publish(main, 'lost', Buffer.from('m'));
    await ch.waitForConfirms();
    assert.strictEqual((await ch.get(queue, { noAck: true })).fields.routingKey, 'lost');
  });
});

test('error: missing queue', async () => {
  sameError(await channelError((ch) => ch.checkQueue('interop.none')), 404, 50, 10, "NOT_FOUND - no queue 'interop.none' in vhost '/'");
});

test('error: missing exchange on publish', async () => {
  sameError(await channelError((ch) => ch.publish('interop.none', '', Buffer.from('m'))), 404, 60, 40, "NOT_FOUND - no exchange 'interop.none' in vhost '/'");
});

test('error: inequivalent argument', async () => {
  const error = await channelError(async (ch) => ch.assertQueue(await declared(ch), { durable: true, autoDelete: true }));
  sameError(error, 406, 50, 10, "inequivalent arg 'auto_delete' for queue");
});

test('error: double ack', async () => {
  const error = await channelError(async (ch) => {
    const queue = await declared(ch);
    ch.sendToQueue(queue, Buffer.from('m'));
    let message = false;
    while (!message) message = await ch.get(queue);
    ch.ack(message);
    ch.ack(message);
  });
  sameError(error, 406, 60, 80, 'unknown delivery tag 1');
});

test('error: exclusive queue of another connection', async () => {
  await channel(async (owner) => {
    const queue = await declared(owner, { exclusive: true });
    sameError(await channelError((ch) => ch.consume(queue, () => {})), 405, 60, 20, 'cannot obtain exclusive access to locked queue');
  });
});

test('error: reused consumer tag closes the connection', async () => {
  await connected(async (connection) => {
    const failed = deferred();
    connection.on('error', failed.resolve);
    const ch = await connection.createChannel();
    ch.on('error', () => {});
    const queue = await declared(ch);
    await ch.consume(queue, () => {}, { consumerTag: 't' });
    ch.consume(queue, () => {}, { consumerTag: 't' }).catch(() => {});
    const error = await failed.promise;
    assert.strictEqual(error.code, 530);
    assert.ok(error.message.includes("attempt to reuse consumer tag 't'"), error.message);
  });
});

test('error: wrong password', async () => {
  const wrong = URL.replace(/\/\/([^:]+):([^@]+)@/, '//$1:$2x@');
  await assert.rejects(amqp.connect(wrong), /403 \(ACCESS-REFUSED\)|ACCESS_REFUSED|Login was refused/);
});

test('heartbeats keep an idle connection', async () => {
  await channel(async (ch) => {
    await new Promise((resolve) => setTimeout(resolve, 3500));
    await declared(ch);
  }, '?heartbeat=1');
});

test('a hundred channels, a queue each', async () => {
  await connected(async (connection) => {
    const channels = await Promise.all([...Array(100)].map(() => connection.createConfirmChannel()));
    await Promise.all(
      channels.map(async (ch, n) => {
        const { queue } = await ch.assertQueue('', { exclusive: true });
        ch.sendToQueue(queue, Buffer.from(`${n}`));
        await ch.waitForConfirms();
        assert.strictEqual((await ch.get(queue, { noAck: true })).content.toString(), `${n}`);
      }),
    );
  });
});

test('a killed socket gives its messages back', async () => {
  await channel(async (ch) => {
    const queue = await declared(ch);
    for (let n = 0; n < 3; n++) ch.sendToQueue(queue, Buffer.from(`${n}`));
    await ch.waitForConfirms();
    const victim = await amqp.connect(URL);
    victim.on('error', () => {});
    const lost = await victim.createChannel();
    lost.on('error', () => {});
    const first = await inbox(lost, queue);
    await first.wait(3);
    victim.connection.stream.destroy();
    const box = await inbox(ch, queue);
    await box.wait(3);
    assert.deepStrictEqual(box.items.map((m) => [m.content.toString(), m.fields.redelivered]), [['0', true], ['1', true], ['2', true]]);
  });
});

async function cleanUp() {
  if (queues.length + exchanges.length === 0) return;
  await channel(async (ch) => {
    for (const queue of queues) await ch.deleteQueue(queue);
    for (const exchange of exchanges) await ch.deleteExchange(exchange);
  });
}

async function main() {
  for (const [name, run] of tests) {
    if (wanted.length && !wanted.some((word) => name.includes(word))) continue;
    queues = [];
    exchanges = [];
    let timer;
    const tooLong = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`did not end within ${TEST_MS_MAX} ms`)), TEST_MS_MAX);
    });
    try {
      await Promise.race([run(), tooLong]);
      await Promise.race([cleanUp(), tooLong]);
      console.log(`ok ${name}`);
    } catch (error) {
      if (error instanceof Skip) console.log(`skip ${name}: ${error.message}`);
      else console.log(`FAIL ${name}: ${String(error.message).replace(/\s+/g, ' ').slice(0, 600)}`);
    }
    clearTimeout(timer);
  }
  console.log('end');
  process.exit(0);
}

main();
