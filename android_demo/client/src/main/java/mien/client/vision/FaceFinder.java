package mien.client.vision;

import java.util.List;

/** Finds faces in pictures. */
public interface FaceFinder extends AutoCloseable {
    /** Returns the faces of a picture, the surest first; none where there is none. */
    List<Face> find(Frame frame);

    @Override
    void close();
}
