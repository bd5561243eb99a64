package mien.app.camera;

import android.content.Context;
import android.graphics.Canvas;
import android.graphics.Paint;
import android.graphics.Path;
import android.graphics.RectF;
import android.view.View;

/** Lies over a preview and shows where the face, or the code, belongs; around a face also how far things are. */
public final class Guide extends View {
    private static final int SCRIM = 0x99000000;
    private static final int WAITING = 0xFFFFFFFF;
    private static final int DONE = 0xFF7FD6BE;
    private static final float LINE_DP = 4;
    private static final float CORNER_DP = 20;
    /** Of the preview's width: an oval, as wide as a face at arm's length. */
    private static final float OVAL_WIDTH = 0.62f;

    private static final float OVAL_ASPECT = 1.32f;
    private static final float MOST_OF_HEIGHT = 0.86f;
    private static final float SQUARE = 0.72f;

    private final boolean isOval;
    private final Paint scrim = new Paint();
    private final Paint line = new Paint(Paint.ANTI_ALIAS_FLAG);
    private final Path outside = new Path();
    private final RectF shape = new RectF();
    private float progress;

    private Guide(Context context, boolean isOval) {
        super(context);
        this.isOval = isOval;
        scrim.setColor(SCRIM);
        scrim.setAntiAlias(true);
        line.setStyle(Paint.Style.STROKE);
        line.setStrokeCap(Paint.Cap.ROUND);
        line.setStrokeWidth(dp(LINE_DP));
        setImportantForAccessibility(IMPORTANT_FOR_ACCESSIBILITY_NO); // the hint says it in words
    }

    /** Returns an oval for a face. */
    public static Guide face(Context context) {
        return new Guide(context, true);
    }

    /** Returns a square for a code. */
    public static Guide code(Context context) {
        return new Guide(context, false);
    }

    /** Shows how far things are, 0 to 1, as a line that grows around the oval. */
    public void setProgress(float progress) {
        this.progress = progress;
        invalidate();
    }

    @Override
    protected void onSizeChanged(int width, int height, int oldWidth, int oldHeight) {
        float oval = Math.min(width * OVAL_WIDTH, height * MOST_OF_HEIGHT / OVAL_ASPECT);
        float across = isOval ? oval : Math.min(width, height) * SQUARE;
        float down = isOval ? across * OVAL_ASPECT : across;
        shape.set((width - across) / 2, (height - down) / 2, (width + across) / 2, (height + down) / 2);
        outside.reset();
        outside.setFillType(Path.FillType.EVEN_ODD);
        outside.addRect(0, 0, width, height, Path.Direction.CW);
        if (isOval) {
            outside.addOval(shape, Path.Direction.CW);
        } else {
            outside.addRoundRect(shape, dp(CORNER_DP), dp(CORNER_DP), Path.Direction.CW);
        }
    }

    @Override
    protected void onDraw(Canvas canvas) {
        canvas.drawPath(outside, scrim);
        line.setColor(WAITING);
        if (!isOval) {
            canvas.drawRoundRect(shape, dp(CORNER_DP), dp(CORNER_DP), line);
            return;
        }
        canvas.drawOval(shape, line);
        line.setColor(DONE);
        line.setStrokeWidth(dp(2 * LINE_DP));
        if (progress > 0) {
            canvas.drawArc(shape, -90, 360 * progress, false, line);
        }
        line.setStrokeWidth(dp(LINE_DP));
    }

    private float dp(float dp) {
        return dp * getResources().getDisplayMetrics().density;
    }
}
