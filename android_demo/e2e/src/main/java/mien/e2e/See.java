package mien.e2e;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import mien.client.vision.FaceFinder;
import mien.client.vision.Frame;
import mien.client.vision.Seen;
import mien.client.vision.YuNet;

/**
 * Looks at pictures from standard input (width, height, then their pixels) and writes what it sees to standard output, so
 * that no face lies on a disk.
 *
 * <pre>
 * See MODEL
 * </pre>
 */
public final class See {
    private See() {}

    public static void main(String[] arguments) throws IOException {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out));
        try (FaceFinder finder = YuNet.of(Files.readAllBytes(Paths.get(arguments[0])))) {
            for (int width = in.readInt(); width > 0; width = in.readInt()) {
                int height = in.readInt();
                byte[] pixels = new byte[3 * width * height];
                in.readFully(pixels);
                Seen.write(finder, Frame.of(width, height, pixels), out);
            }
        }
        out.flush();
    }
}
