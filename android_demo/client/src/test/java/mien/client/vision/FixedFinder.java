package mien.client.vision;

import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/** Finds the faces that it was told, whatever the picture, and of the looks at a face sees it in the first alone. */
public final class FixedFinder implements FaceFinder {
    public List<Face> faces;
    public int numLooks;
    private int numSearches;

    public FixedFinder(Face... faces) {
        this.faces = Arrays.asList(faces);
    }

    @Override
    public List<Face> find(Frame frame) {
        numLooks++;
        numSearches = 0;
        return faces;
    }

    @Override
    public List<Face> search(Frame frame) {
        return numSearches++ % 8 == 0 ? faces : Collections.<Face>emptyList();
    }

    @Override
    public void close() {}
}
