package mien.app.camera;

import android.content.Context;
import android.graphics.Color;
import android.util.Size;
import android.widget.FrameLayout;

/** Holds a preview, as large as there is room for, at the aspect of the camera's pictures. */
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
        int width = room(widthSpec);
        int height = room(heightSpec);
        if ((long) width * aspect.getHeight() > (long) height * aspect.getWidth()) {
            width = (int) ((long) height * aspect.getWidth() / aspect.getHeight());
        } else {
            height = (int) ((long) width * aspect.getHeight() / aspect.getWidth());
        }
        super.onMeasure(
                MeasureSpec.makeMeasureSpec(width, MeasureSpec.EXACTLY),
                MeasureSpec.makeMeasureSpec(height, MeasureSpec.EXACTLY));
    }

    private static int room(int spec) {
        return MeasureSpec.getMode(spec) == MeasureSpec.UNSPECIFIED ? Integer.MAX_VALUE >> 8 : MeasureSpec.getSize(spec);
    }
}
