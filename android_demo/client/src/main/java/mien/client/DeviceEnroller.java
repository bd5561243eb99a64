package mien.client;

import mien.client.enrol.Consent;
import mien.client.enrol.Enroller;

/** Enrols into a device's gallery, with the model in use. */
public final class DeviceEnroller implements Enroller {
    private final Device device;

    /** Enrols into an open device. */
    public DeviceEnroller(Device device) {
        this.device = device;
    }

    @Override
    public float[][] embed(byte[][] crops) {
        return device.recogniser().embed(crops);
    }

    @Override
    public double threshold() {
        try {
            return device.recogniser().threshold();
        } catch (MienException error) {
            if (error.code() == ErrorCode.CONFIG) {
                return Double.NEGATIVE_INFINITY; // the model has none yet: then no picture is a stranger's
            }
            throw error;
        }
    }

    @Override
    public int enrol(String name, byte[][] crops, Consent consent, boolean anyway) {
        return device.enrol(name, crops, consent.trains(), anyway);
    }
}
