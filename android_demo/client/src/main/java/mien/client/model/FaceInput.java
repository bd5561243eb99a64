package mien.client.model;

import java.util.Arrays;
import java.util.List;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Fields;

/** What a recogniser expects of an aligned crop: size, colour order and scaling; a crop is (height, width, 3) RGB. */
public final class FaceInput {
    /** Width and height of a master crop, as it is aligned and kept. */
    public static final int MASTER = 112;

    public final int width;
    public final int height;
    public final boolean isBgr;
    public final float mean;
    public final float scale;
    public final int dim;

    /** Families whose networks take (value - 127.5) / 127.5; the others take (value - 127.5) / 128. */
    private static final List<String> HALVED =
            Arrays.asList("iresnet18", "iresnet34", "iresnet50", "iresnet100", "resnet34", "resnet34_folded");

    private static final List<String> OTHERS =
            Arrays.asList(
                    "mobilefacenet",
                    "mobilefacenet_folded",
                    "mobilefacenet192",
                    "mobilefacenet192_adapter",
                    "mobilefacenet192_gate",
                    "sface",
                    "sface_adapter",
                    "sface_gate",
                    "sphereface20",
                    "sphereface64");

    /** Returns whether a family of networks takes faces like this, whatever the length of its embedding. */
    public boolean isOwnOf(String backbone) {
        float own = HALVED.contains(backbone) ? 127.5f : OTHERS.contains(backbone) ? 128f : 0;
        return width == MASTER && !isBgr && mean == 127.5f && scale == own;
    }

    /** Returns whether another model takes faces like this, whatever the length of its embedding. */
    public boolean isLike(FaceInput other) {
        return width == other.width && isBgr == other.isBgr && mean == other.mean && scale == other.scale;
    }

    private FaceInput(Fields fields) {
        width = fields.count("width", 1);
        height = fields.count("height", 1);
        isBgr = fields.text("colour").equals("BGR");
        mean = (float) fields.real("mean");
        scale = (float) fields.real("scale");
        dim = fields.count("dim", 1);
        fields.end();
        if (height != 112 || (width != 112 && width != 96) || !(scale > 0)) {
            throw new MienException(ErrorCode.CONFIG, "the model takes crops that this program cannot make; upgrade it");
        }
    }

    static FaceInput parse(Fields fields) {
        return new FaceInput(fields);
    }

    /** Returns the size of one crop in bytes, RGB. */
    public int cropBytes() {
        return width * height * 3;
    }

    /** Returns a master crop as this model wants it: the narrower one is its middle. */
    public byte[] fit(byte[] master) {
        if (master.length != MASTER * MASTER * 3) {
            throw new MienException(ErrorCode.CONFIG, "a crop is not 112 x 112 pixels in RGB; align it first");
        }
        int margin = (MASTER - width) / 2;
        byte[] fitted = new byte[cropBytes()];
        for (int y = 0; y < height; y++) {
            System.arraycopy(master, (y * MASTER + margin) * 3, fitted, y * width * 3, width * 3);
        }
        return fitted;
    }

    /** Returns a crop's mirror image. */
    public byte[] mirrored(byte[] crop) {
        byte[] mirrored = new byte[crop.length];
        for (int pixel = 0; pixel < width * height; pixel++) {
            int from = pixel / width * width + width - 1 - pixel % width;
            System.arraycopy(crop, 3 * from, mirrored, 3 * pixel, 3);
        }
        return mirrored;
    }

    /** Writes a crop as the network's input (3, height, width), from {@code start} on; mirrored where asked. */
    public void write(byte[] crop, boolean mirrored, float[] out, int start) {
        int plane = width * height;
        for (int y = 0; y < height; y++) {
            for (int x = 0; x < width; x++) {
                int from = (y * width + (mirrored ? width - 1 - x : x)) * 3;
                int to = start + y * width + x;
                for (int channel = 0; channel < 3; channel++) {
                    int value = crop[from + (isBgr ? 2 - channel : channel)] & 0xff;
                    out[to + channel * plane] = (value - mean) / scale;
                }
            }
        }
    }
}
