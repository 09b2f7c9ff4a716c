import java.nio.ByteBuffer;

/** Direct buffers of 1 to 4 MiB, filled; the cleaner frees them. Argument: rounds. */
public class Direct {
    public static void main(String[] args) {
        int rounds = Integer.parseInt(args[0]);
        byte[] line = new byte[64 << 10];
        long total = 0;
        ByteBuffer[] kept = new ByteBuffer[4];
        for (int i = 0; i < rounds; i++) {
            int size = (1 + i % 4) << 20;
            ByteBuffer buffer = ByteBuffer.allocateDirect(size);
            line[0] = (byte) i;
            while (buffer.remaining() >= line.length) {
                buffer.put(line);
            }
            total += buffer.get(size - line.length) + buffer.get(1);
            kept[i % kept.length] = buffer;
        }
        System.out.println(total);
    }
}
