package mien.client.vision;

/** Pictures at another size, as OpenCV resizes pixels of 8 bits: INTER_AREA where it shrinks, INTER_LINEAR else. */
final class Resizing {
    private static final int COEFFICIENT_BITS = 11;

    private Resizing() {}

    static Frame to(Frame frame, int width, int height) {
        if (width == frame.width && height == frame.height) {
            return frame;
        }
        if (width > frame.width || height > frame.height) {
            return enlarged(frame, width, height);
        }
        boolean isWhole = frame.width % width == 0 && frame.height % height == 0;
        return isWhole ? averaged(frame, frame.width / width, frame.height / height) : shrunk(frame, width, height);
    }

    /** Returns the mean of blocks of pixels; what is left over at the right and below is left out. */
    static Frame averaged(Frame frame, int across, int down) {
        Frame small = Frame.blank(frame.width / across, frame.height / down);
        float share = 1f / (across * down);
        boolean isHalf = across == 2 && down == 2;
        for (int y = 0, to = 0; y < small.height; y++) {
            for (int x = 0; x < small.width; x++) {
                for (int channel = 0; channel < 3; channel++, to++) {
                    int sum = 0;
                    for (int row = y * down; row < (y + 1) * down; row++) {
                        int from = 3 * (row * frame.width + x * across) + channel;
                        for (int i = 0; i < across; i++) {
                            sum += frame.rgb[from + 3 * i] & 0xff;
                        }
                    }
                    // Halves are rounded up where it takes four pixels, to even ones else.
                    small.rgb[to] = isHalf ? (byte) (sum + 2 >> 2) : Warp.rounded(sum * share);
                }
            }
        }
        return small;
    }

    /** What one pixel of the large picture gives to one of the small. */
    private static final class Shares {
        final int[] to;
        final int[] from;
        final float[] share;
        int count;

        Shares(int large, int small) {
            to = new int[2 * large];
            from = new int[2 * large];
            share = new float[2 * large];
            double scale = (double) large / small;
            for (int i = 0; i < small; i++) {
                double start = i * scale;
                double end = start + scale;
                double width = Math.min(scale, large - start);
                int last = Math.min((int) Math.floor(end), large - 1);
                int first = Math.min((int) Math.ceil(start), last);
                if (first - start > 1e-3) {
                    add(i, first - 1, (first - start) / width);
                }
                for (int whole = first; whole < last; whole++) {
                    add(i, whole, 1 / width);
                }
                if (end - last > 1e-3) {
                    add(i, last, Math.min(Math.min(end - last, 1), width) / width);
                }
            }
        }

        private void add(int small, int large, double part) {
            to[count] = small;
            from[count] = large;
            share[count++] = (float) part;
        }
    }

    private static Frame shrunk(Frame frame, int width, int height) {
        Shares across = new Shares(frame.width, width);
        Shares down = new Shares(frame.height, height);
        Frame small = Frame.blank(width, height);
        float[] row = new float[3 * width];
        float[] sum = new float[3 * width];
        int known = -1;
        for (int i = 0; i < down.count; i++) {
            if (down.from[i] != known) {
                known = down.from[i];
                shrinkRow(frame, known, across, row);
            }
            for (int at = 0; at < sum.length; at++) {
                sum[at] += row[at] * down.share[i];
            }
            if (i + 1 == down.count || down.to[i + 1] != down.to[i]) {
                for (int at = 0; at < sum.length; at++) {
                    small.rgb[down.to[i] * sum.length + at] = Warp.rounded(sum[at]);
                    sum[at] = 0;
                }
            }
        }
        return small;
    }

    private static void shrinkRow(Frame frame, int y, Shares across, float[] row) {
        java.util.Arrays.fill(row, 0);
        for (int i = 0; i < across.count; i++) {
            int from = 3 * (y * frame.width + across.from[i]);
            int to = 3 * across.to[i];
            float share = across.share[i];
            row[to] += (frame.rgb[from] & 0xff) * share;
            row[to + 1] += (frame.rgb[from + 1] & 0xff) * share;
            row[to + 2] += (frame.rgb[from + 2] & 0xff) * share;
        }
    }

    /** The two pixels between which one of the enlarged picture lies, and how much of each it takes, of 2^11. */
    private static final class Between {
        final int[] first;
        final int[] second;
        final int[] ofFirst;
        final int[] ofSecond;

        /** Beyond the outermost columns the nearest counts alone; of rows both are the nearest one, and round apart. */
        Between(int small, int large, boolean isAcross) {
            first = new int[large];
            second = new int[large];
            ofFirst = new int[large];
            ofSecond = new int[large];
            double scale = (double) small / large;
            for (int i = 0; i < large; i++) {
                float at = (float) ((i + 0.5) * scale - 0.5);
                int whole = (int) Math.floor(at);
                float part = at - whole;
                if (isAcross && (whole < 0 || whole >= small - 1)) {
                    part = 0;
                }
                first[i] = Math.max(0, Math.min(small - 1, whole));
                second[i] = Math.max(0, Math.min(small - 1, whole + 1));
                ofFirst[i] = (int) Math.rint((1 - part) * (1 << COEFFICIENT_BITS));
                ofSecond[i] = (int) Math.rint(part * (1 << COEFFICIENT_BITS));
            }
        }
    }

    private static Frame enlarged(Frame frame, int width, int height) {
        Between across = new Between(frame.width, width, true);
        Between down = new Between(frame.height, height, false);
        Frame large = Frame.blank(width, height);
        int[][] rows = {new int[3 * width], new int[3 * width]};
        int[] known = {-1, -1};
        for (int y = 0, to = 0; y < height; y++) {
            int[] upper = row(frame, down.first[y], across, rows, known);
            int[] lower = row(frame, down.second[y], across, rows, known);
            for (int at = 0; at < 3 * width; at++, to++) {
                int above = (upper[at] >> 4) * down.ofFirst[y] >> 16;
                int below = (lower[at] >> 4) * down.ofSecond[y] >> 16;
                large.rgb[to] = (byte) (above + below + 2 >> 2);
            }
        }
        return large;
    }

    /** Returns a row enlarged, from the two that are kept: rows of different parity do not push one another out. */
    private static int[] row(Frame frame, int y, Between across, int[][] rows, int[] known) {
        int[] row = rows[y & 1];
        if (known[y & 1] != y) {
            known[y & 1] = y;
            for (int x = 0, to = 0; x < across.first.length; x++) {
                int first = 3 * (y * frame.width + across.first[x]);
                int second = 3 * (y * frame.width + across.second[x]);
                for (int channel = 0; channel < 3; channel++, to++) {
                    row[to] = (frame.rgb[first + channel] & 0xff) * across.ofFirst[x]
                            + (frame.rgb[second + channel] & 0xff) * across.ofSecond[x];
                }
            }
        }
        return row;
    }
}
