package mien.client.vision;

import java.util.Arrays;
import java.util.List;

/** Finds the faces that it was told, whatever the picture. */
public final class FixedFinder implements FaceFinder {
    public List<Face> faces;
    public int numLooks;

    public FixedFinder(Face... faces) {
        this.faces = Arrays.asList(faces);
    }

    @Override
    public List<Face> find(Frame frame) {
        numLooks++;
        return faces;
    }

    @Override
    public void close() {}
}
