package mien.app.camera;

import android.content.Context;
import android.util.AttributeSet;
import android.view.View;
import android.view.ViewGroup;

/**
 * Two children: what the camera sees, and what is said about it. Upright they lie one below the other, the words at the
 * bottom and never more than a share of the height; across they lie side by side.
 */
public final class CameraLayout extends ViewGroup {
    private static final float MOST_OF_HEIGHT = 0.62f;
    private static final float SHARE_OF_WIDTH = 0.5f;

    public CameraLayout(Context context, AttributeSet attributes) {
        super(context, attributes);
    }

    @Override
    protected void onMeasure(int widthSpec, int heightSpec) {
        int width = MeasureSpec.getSize(widthSpec);
        int height = MeasureSpec.getSize(heightSpec);
        setMeasuredDimension(width, height);
        if (isAcross(width, height)) {
            int words = (int) (width * SHARE_OF_WIDTH);
            words().measure(exactly(words), exactly(height));
            pictures().measure(exactly(width - words), exactly(height));
        } else {
            int most = (int) (height * MOST_OF_HEIGHT);
            words().measure(exactly(width), MeasureSpec.makeMeasureSpec(most, MeasureSpec.AT_MOST));
            pictures().measure(exactly(width), exactly(height - words().getMeasuredHeight()));
        }
    }

    @Override
    protected void onLayout(boolean isChanged, int left, int top, int right, int bottom) {
        int width = right - left;
        int height = bottom - top;
        if (isAcross(width, height)) {
            boolean isMirrored = getLayoutDirection() == LAYOUT_DIRECTION_RTL;
            int edge = isMirrored ? words().getMeasuredWidth() : pictures().getMeasuredWidth();
            (isMirrored ? words() : pictures()).layout(0, 0, edge, height);
            (isMirrored ? pictures() : words()).layout(edge, 0, width, height);
        } else {
            int edge = pictures().getMeasuredHeight();
            pictures().layout(0, 0, width, edge);
            words().layout(0, edge, width, height);
        }
    }

    private View pictures() {
        return getChildAt(0);
    }

    private View words() {
        return getChildAt(1);
    }

    private static boolean isAcross(int width, int height) {
        return width > height;
    }

    private static int exactly(int size) {
        return MeasureSpec.makeMeasureSpec(size, MeasureSpec.EXACTLY);
    }
}
