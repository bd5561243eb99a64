package mien.client.vision;

import java.util.List;

/** Finds faces in pictures. */
public interface FaceFinder extends AutoCloseable {
    /** Returns the faces of a picture, the surest first; none where there is none. */
    List<Face> find(Frame frame);

    /** Returns what one search finds, the surest first: {@link #find} makes another, at twice the size, where none is. */
    List<Face> search(Frame frame);

    @Override
    void close();
}
