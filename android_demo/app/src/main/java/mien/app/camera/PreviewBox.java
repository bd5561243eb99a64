package mien.app.camera;

import android.content.Context;
import android.graphics.Color;
import android.util.Size;
import android.view.View;
import android.widget.FrameLayout;

/**
 * Fills its place with a preview, its first child, at the aspect of the camera's pictures: what is too much is cut off alike on
 * either side. The others lie over it. Pictures that are judged are whole, so that what is cut off here is seen all the same.
 */
public final class PreviewBox extends FrameLayout {
    private Size aspect = new Size(3, 4);

    public PreviewBox(Context context) {
        super(context);
        setBackgroundColor(Color.DKGRAY); // until there is a picture
    }

    /** Sets the aspect, by the size of upright pictures. */
    public void setAspect(Size aspect) {
        if (!aspect.equals(this.aspect)) {
            this.aspect = aspect;
            requestLayout();
        }
    }

    @Override
    protected void onMeasure(int widthSpec, int heightSpec) {
        super.onMeasure(widthSpec, heightSpec);
        View picture = getChildAt(0);
        if (picture != null) {
            Size size = covering(getMeasuredWidth(), getMeasuredHeight());
            picture.measure(exactly(size.getWidth()), exactly(size.getHeight()));
        }
    }

    @Override
    protected void onLayout(boolean isChanged, int left, int top, int right, int bottom) {
        super.onLayout(isChanged, left, top, right, bottom);
        View picture = getChildAt(0);
        if (picture != null) {
            int x = (right - left - picture.getMeasuredWidth()) / 2;
            int y = (bottom - top - picture.getMeasuredHeight()) / 2;
            picture.layout(x, y, x + picture.getMeasuredWidth(), y + picture.getMeasuredHeight());
        }
    }

    /** Returns the least size of a picture's aspect that leaves nothing of a place uncovered. */
    private Size covering(int width, int height) {
        return (long) width * aspect.getHeight() < (long) height * aspect.getWidth()
                ? new Size((int) ((long) height * aspect.getWidth() / aspect.getHeight()), height)
                : new Size(width, (int) ((long) width * aspect.getHeight() / aspect.getWidth()));
    }

    private static int exactly(int size) {
        return MeasureSpec.makeMeasureSpec(size, MeasureSpec.EXACTLY);
    }
}
