package mien.client.train;

import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Fields;

/** Local training on one device: SGD on the trainable part. */
public final class LocalSpec {
    final double lr;
    final int epochs;
    /** 0: all images in one batch. */
    final int batchSize;

    final double momentum;
    final double weightDecay;
    final boolean flip;
    final double privateLr;
    final double privateMomentum;
    final double privateWeightDecay;
    /** From this epoch on both rates are a tenth; 0: never. */
    final int lrDropEpoch;
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
        privateMomentum = fields.real("private_momentum", momentum);
        privateWeightDecay = fields.real("private_weight_decay", 0);
        lrDropEpoch = fields.count("lr_drop_epoch", 0);
        steps = fields.count("steps", 0);
        if (!fields.text("batch_norm", "eval").equals("eval")) {
            throw new MienException(ErrorCode.CONFIG, "local.batch_norm is 'train', which is not for phones; use eval");
        }
        fields.end();
    }
}
