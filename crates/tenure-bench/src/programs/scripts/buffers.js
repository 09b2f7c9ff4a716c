// Buffers of 256 KiB to 3 MiB, filled, sliced and joined. Argument: rounds.
const rounds = Number(process.argv[2]);
const kept = new Array(8).fill(null);
let total = 0;
for (let i = 0; i < rounds; i++) {
  const size = (256 << 10) * (1 + (i * 7) % 12);
  const buffer = Buffer.allocUnsafe(size).fill(i & 255);
  const joined = Buffer.concat([buffer.subarray(0, size / 2), Buffer.alloc(size / 4, 7)]);
  kept[i % kept.length] = joined;
  total += joined[size / 4] + joined[joined.length - 1] + buffer[size - 1];
}
console.log(total);
