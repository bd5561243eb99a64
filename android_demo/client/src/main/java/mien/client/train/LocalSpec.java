package mien.client.train;

import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Fields;

/** Local training on one device: SGD on the trainable part. */
public final class LocalSpec {
    /** As Python has them: a coordinator could have phones train without end else. */
    private static final double MOST_RATE = 1e3;

    private static final int MOST_EPOCHS = 1000;
    private static final int MOST_IMAGES = 1_000_000;
    private static final int MOST_STEPS = 1_000_000;

    public final double lr;
    public final int epochs;
    /** 0: all images in one batch. */
    final int batchSize;

    public final double momentum;
    public final double weightDecay;
    public final boolean flip;
    public final double privateLr;
    public final double privateMomentum;
    /** Whether private tensors have a momentum of their own. */
    public final boolean namesPrivateMomentum;

    final double privateWeightDecay;
    /** From this epoch on both rates are a tenth; 0: never. */
    public final int lrDropEpoch;
    /** Above 0: so many steps, whatever the number of images. */
    final int steps;

    /** Reads how a task trains on a device; throws CONFIG for numbers out of range. */
    public LocalSpec(Fields fields) {
        lr = fields.real("lr");
        epochs = fields.count("epochs", 1);
        batchSize = fields.count("batch_size", 0);
        momentum = fields.real("momentum");
        weightDecay = fields.real("weight_decay");
        flip = fields.flag("flip");
        privateLr = fields.real("private_lr", lr);
        namesPrivateMomentum = fields.has("private_momentum");
        privateMomentum = fields.real("private_momentum", momentum);
        privateWeightDecay = fields.real("private_weight_decay", 0);
        lrDropEpoch = fields.count("lr_drop_epoch", 0);
        steps = fields.count("steps", 0);
        if (!fields.text("batch_norm", "eval").equals("eval")) {
            throw new MienException(ErrorCode.CONFIG, "local.batch_norm is 'train', which is not for phones; use eval");
        }
        fields.end();
        boolean ends =
                epochs <= MOST_EPOCHS && lrDropEpoch <= MOST_EPOCHS && batchSize <= MOST_IMAGES && steps <= MOST_STEPS;
        boolean rates = lr > 0 && isRate(lr) && isRate(privateLr) && isRate(weightDecay) && isRate(privateWeightDecay);
        if (!ends || !rates || !isMomentum(momentum) || !isMomentum(privateMomentum)) {
            throw new MienException(
                    ErrorCode.CONFIG, "the task trains with numbers that cannot be, or without end; this device stays out of it");
        }
    }

    private static boolean isRate(double value) {
        return value >= 0 && value <= MOST_RATE;
    }

    private static boolean isMomentum(double value) {
        return value >= 0 && value < 1;
    }

    private LocalSpec(
            double lr,
            double privateLr,
            int epochs,
            int batchSize,
            double[] momenta,
            double[] decays,
            boolean flip,
            int lrDropEpoch,
            int steps) {
        this.lr = lr;
        this.privateLr = privateLr;
        this.epochs = epochs;
        this.batchSize = batchSize;
        momentum = momenta[0];
        privateMomentum = momenta[1];
        namesPrivateMomentum = true;
        weightDecay = decays[0];
        privateWeightDecay = decays[1];
        this.flip = flip;
        this.lrDropEpoch = lrDropEpoch;
        this.steps = steps;
    }

    /** Returns the same for so many epochs, the rates a tenth from an epoch on (0: never). */
    public LocalSpec with(int someEpochs, int dropEpoch) {
        return new LocalSpec(
                lr, privateLr, someEpochs, batchSize, new double[] {momentum, privateMomentum},
                new double[] {weightDecay, privateWeightDecay}, flip, dropEpoch, steps);
    }

    /** Returns the same at another rate, private tensors' in proportion, and with other momenta. */
    public LocalSpec with(double rate, double ownMomentum, double someMomentum) {
        return new LocalSpec(
                rate, privateLr * rate / lr, epochs, batchSize, new double[] {ownMomentum, someMomentum},
                new double[] {weightDecay, privateWeightDecay}, flip, lrDropEpoch, steps);
    }

    /** Returns the same at another rate of private tensors. */
    public LocalSpec withPrivateLr(double rate) {
        return new LocalSpec(
                lr, rate, epochs, batchSize, new double[] {momentum, privateMomentum},
                new double[] {weightDecay, privateWeightDecay}, flip, lrDropEpoch, steps);
    }

    /** Returns one plain step at rate 1 on all images as they are, which leaves private tensors alone. */
    public LocalSpec oneStep() {
        return new LocalSpec(1, 0, 1, 0, new double[2], new double[] {weightDecay, 0}, false, 0, 1);
    }

    /** Returns how many steps training on so many images takes. */
    public int numSteps(int numImages) {
        int each = batchSize == 0 ? 1 : (numImages + batchSize - 1) / batchSize;
        return steps > 0 ? steps : epochs * each;
    }
}
